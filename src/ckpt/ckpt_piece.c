/* ckpt_piece.c - from a piece of the snapshot to its bytes in the file.
 *
 * Parameters lie in memory as their backend likes it, in files plainly. Where a rank writes only
 * some elements of one that is not plain, it finds their places by bringing a mask to plain order
 * in the same way, and writes run by run. */
#include <string.h>

#include "ckpt/ckpt_impl.h"
#include "ddp/fs.h"
#include "ddp/memory.h"

ddp_status ddpi_ckpt_scratch_open(const ddp_param_table *table, ddpi_ckpt_scratch *scratch_out)
{
    ddpi_ckpt_scratch scratch = {0};
    size_t most = 1;
    for (int i = 0; i < ddp_param_table_count(table); i++) {
        const size_t count = ddp_param_table_at(table, i)->count;
        most = count > most ? count : most;
    }
    ddp_status st = DDP_ALLOC(scratch.packed, most);
    if (st == DDP_OK)
        st = DDP_ALLOC(scratch.plain, most);
    if (st == DDP_OK)
        st = DDP_ALLOC(scratch.mask, most);
    if (st != DDP_OK)
        ddpi_ckpt_scratch_close(&scratch);
    else
        *scratch_out = scratch;
    return st;
}

void ddpi_ckpt_scratch_close(ddpi_ckpt_scratch *scratch)
{
    ddp_free(scratch->packed);
    ddp_free(scratch->plain);
    ddp_free(scratch->mask);
    *scratch = (ddpi_ckpt_scratch){0};
}

/* The part of a plain parameter, but for padding at its end. */
static ddp_status write_plain(const ddpi_ckpt_piece *piece, const char *from, int fd,
                              const char *path)
{
    const size_t lo = (piece->part.lo - piece->param->offset) * sizeof(float);
    size_t hi = (piece->part.hi - piece->param->offset) * sizeof(float);
    hi = hi < piece->bytes ? hi : piece->bytes;
    return lo < hi ? ddp_fs_write_at(fd, from, hi - lo, piece->offset + lo, path) : DDP_OK;
}

static ddp_status write_runs(const ddpi_ckpt_piece *piece, const ddpi_ckpt_scratch *scratch, int fd,
                             const char *path)
{
    const size_t count = piece->bytes / sizeof(float);
    for (size_t lo = 0, hi; lo < count; lo = hi) {
        const bool mine = scratch->mask[lo] != 0;
        for (hi = lo + 1; hi < count && (scratch->mask[hi] != 0) == mine;)
            hi++;
        if (mine)
            DDP_TRY(ddp_fs_write_at(fd, scratch->plain + lo, (hi - lo) * sizeof(float),
                                    piece->offset + lo * sizeof(float), path));
    }
    return DDP_OK;
}

static ddp_status write_scattered(const ddpi_ckpt_piece *piece, const char *from,
                                  const ddpi_ckpt_scratch *scratch, int fd, const char *path)
{
    const ddp_param *param = piece->param;
    const size_t first = piece->part.lo - param->offset, count = piece->part.hi - piece->part.lo;
    memset(scratch->packed, 0, param->count * sizeof(float));
    memcpy(scratch->packed + first, from, count * sizeof(float));
    DDP_TRY(ddp_layout_unpack(param->layout, scratch->packed, scratch->plain));
    for (size_t i = 0; i < count; i++)
        scratch->packed[first + i] = 1;
    DDP_TRY(ddp_layout_unpack(param->layout, scratch->packed, scratch->mask));
    return write_runs(piece, scratch, fd, path);
}

ddp_status ddpi_ckpt_piece_write(const ddpi_ckpt_piece *piece, const char *memory,
                                 const ddpi_ckpt_scratch *scratch, int fd, const char *path)
{
    const char *from = memory + piece->memory;
    const ddp_param *param = piece->param;
    if (piece->kind != DDPI_CKPT_PARAM)
        return ddp_fs_write_at(fd, from, piece->bytes, piece->offset, path);
    if (ddp_layout_is_plain(param->layout))
        return write_plain(piece, from, fd, path);
    if (piece->part.hi - piece->part.lo < param->count)
        return write_scattered(piece, from, scratch, fd, path);
    DDP_TRY(ddp_layout_unpack(param->layout, from, scratch->plain));
    return ddp_fs_write_at(fd, scratch->plain, piece->bytes, piece->offset, path);
}
