/* nccl_sum.c - allreduce whose additions have one order, whatever the library would choose.
 *
 * NCCL picks algorithm, protocol and channels by size and topology, and none of its settings fixes
 * the order of additions across versions. Here it only carries bytes: each rank gets its slice of
 * everybody's partial sums (parts.h), adds them in the order of the tree, and sends the result to
 * all. As few bytes as a ring, in two rounds. Buffers are taken in chunks, so that the memory for
 * it is bounded. Everything is enqueued on the lane's stream; nothing waits. */
#include "comm/nccl/nccl_impl.h"
#include "comm/parts.h"
#include "ddp/pointwise.h"
#include "ddp/sum_tree.h"

/* Elements of others' partial sums that are kept at a time. */
#define PIECES_COUNT ((size_t)8 << 20)
#define PIECES_BYTES (PIECES_COUNT * sizeof(float))
/* Slices start on borders of 64 bytes of the chunk, for either type. */
#define UNIT_COUNT ((size_t)32)

/* A chunk of the buffer on its way. */
typedef struct chunk {
    ddpi_nccl *n;
    const ddp_coll *coll;
    const ddpi_parts *parts;
    size_t at, count;          /* of the buffer's elements */
    size_t stride, item_bytes; /* stride: elements of a slice, and from one piece to the next */
    ncclDataType_t type;
} chunk;

/* ---- where things are ---- */

/* The elements that a rank sums. */
static ddp_range slice(const chunk *c, int rank)
{
    size_t lo = c->stride * (size_t)rank, hi = lo + c->stride;

    lo = lo < c->count ? lo : c->count;
    return (ddp_range){lo, hi < c->count ? hi : c->count};
}

static size_t length(ddp_range range)
{
    return range.hi - range.lo;
}

/* Element of this rank's partial sum number `place`. */
static void *element(const chunk *c, int place, size_t index)
{
    return (char *)c->coll->buf + ddpi_part_offset(c->coll, place) +
           (c->at + index) * c->item_bytes;
}

/* My slice of a partial sum: this rank's own where it lies, another's where it arrives. */
static void *piece(const chunk *c, int part)
{
    if (c->parts->rank[part] == c->n->rank)
        return element(c, c->parts->place[part], slice(c, c->n->rank).lo);
    return (char *)c->n->pieces + (size_t)part * c->stride * c->item_bytes;
}

static float *addend(const chunk *c, int part)
{
    if (c->coll->dtype == DDP_BF16)
        return c->n->widened + (size_t)part * c->stride;
    return piece(c, part);
}

/* ---- the two rounds ---- */

static ncclResult_t send_range(const chunk *c, int place, ddp_range range, int peer)
{
    if (length(range) == 0)
        return ncclSuccess;
    return ncclSend(element(c, place, range.lo), length(range), c->type, peer, c->n->nccl,
                    c->n->cuda_stream);
}

static ncclResult_t recv_range(const chunk *c, void *dst, size_t count, int peer)
{
    if (count == 0)
        return ncclSuccess;
    return ncclRecv(dst, count, c->type, peer, c->n->nccl, c->n->cuda_stream);
}

/* One partial sum: from its rank to everybody else. */
static ncclResult_t scatter_part(const chunk *c, int part)
{
    const int from = c->parts->rank[part], rank = c->n->rank;
    ncclResult_t result = ncclSuccess;

    if (from != rank)
        return recv_range(c, piece(c, part), length(slice(c, rank)), from);
    for (int r = 0; r < c->n->world && result == ncclSuccess; r++)
        if (r != rank)
            result = send_range(c, c->parts->place[part], slice(c, r), r);
    return result;
}

static ncclResult_t scatter(const chunk *c)
{
    ncclResult_t result = ncclGroupStart();

    for (int i = 0; i < c->parts->n && result == ncclSuccess; i++)
        result = scatter_part(c, i);
    ncclResult_t ended = ncclGroupEnd();
    return result != ncclSuccess ? result : ended;
}

static ncclResult_t gather(const chunk *c)
{
    const ddp_range mine = slice(c, c->n->rank);
    ncclResult_t result = ncclGroupStart();

    for (int r = 0; r < c->n->world && result == ncclSuccess; r++) {
        const ddp_range theirs = slice(c, r);
        if (r == c->n->rank)
            continue;
        result = send_range(c, 0, mine, r);
        if (result == ncclSuccess)
            result = recv_range(c, element(c, 0, theirs.lo), length(theirs), r);
    }
    ncclResult_t ended = ncclGroupEnd();
    return result != ncclSuccess ? result : ended;
}

/* ---- additions ---- */

/* Sums what lies under the node that starts at part *next and has so many leaves, into that part's
 * place; *next then is the part behind. */
static ddp_status add_node(const chunk *c, int64_t leaves, size_t count, int *next)
{
    const int first = *next;

    if (c->parts->leaves[first] == leaves) {
        (*next)++;
        return DDP_OK;
    }
    const int64_t left = ddp_sum_split(leaves);
    DDP_TRY(add_node(c, left, count, next));
    const int second = *next;
    DDP_TRY(add_node(c, leaves - left, count, next));
    return ddp_op_add(c->n->base.device, c->n->stream, addend(c, first), addend(c, second), count);
}

static ddp_status add_up(const chunk *c)
{
    ddpi_nccl *n = c->n;
    const ddp_range mine = slice(c, n->rank);
    const size_t count = length(mine);
    void *result = element(c, 0, mine.lo);
    int64_t leaves = 0;
    int next = 0;

    if (count == 0)
        return DDP_OK;
    for (int i = 0; i < c->parts->n; i++) {
        leaves += c->parts->leaves[i];
        if (c->coll->dtype == DDP_BF16)
            DDP_TRY(
                ddp_op_from_bf16(n->base.device, n->stream, addend(c, i), piece(c, i), count, 1));
    }
    DDP_TRY(add_node(c, leaves, count, &next));
    if (c->coll->dtype == DDP_BF16)
        return ddp_op_to_bf16(n->base.device, n->stream, result, addend(c, 0), count, 1);
    if (addend(c, 0) == result)
        return DDP_OK;
    return ddp_device_copy(n->base.device, n->stream, result, addend(c, 0), count * sizeof(float),
                           DDP_COPY_ON_DEVICE);
}

/* ---- all of it ---- */

/* At the first sum, so that runs that do without order do without the memory. */
static ddp_status get_scratch(ddpi_nccl *n, ddp_dtype dtype)
{
    void *widened;

    if (n->pieces == NULL)
        DDP_TRY(ddp_device_alloc(n->base.device, PIECES_BYTES, &n->pieces));
    if (n->widened != NULL || dtype != DDP_BF16)
        return DDP_OK;
    DDP_TRY(ddp_device_alloc(n->base.device, PIECES_BYTES, &widened));
    n->widened = widened;
    return DDP_OK;
}

void ddpi_nccl_free_scratch(ddpi_nccl *n)
{
    if (n->widened != NULL)
        ddp_device_free(n->base.device, n->widened, PIECES_BYTES);
    if (n->pieces != NULL)
        ddp_device_free(n->base.device, n->pieces, PIECES_BYTES);
}

static size_t slice_stride(size_t count, int world, int parts)
{
    size_t units = (count + UNIT_COUNT - 1) / UNIT_COUNT;
    size_t share = (units + (size_t)world - 1) / (size_t)world * UNIT_COUNT;
    size_t most = PIECES_COUNT / (size_t)parts / UNIT_COUNT * UNIT_COUNT;

    return share < most ? share : most;
}

ddp_status ddpi_nccl_sum(ddpi_nccl *n, const ddp_coll *coll)
{
    ddpi_parts parts;
    chunk c = {.n = n, .coll = coll, .parts = &parts};

    DDP_TRY(get_scratch(n, coll->dtype));
    ddpi_parts_list(coll, n->world, &parts);
    c.item_bytes = ddp_dtype_bytes(coll->dtype);
    c.type = coll->dtype == DDP_BF16 ? ncclBfloat16 : ncclFloat;
    c.stride = slice_stride(coll->count, n->world, parts.n);
    const size_t most = c.stride * (size_t)n->world;
    for (; c.at < coll->count; c.at += c.count) {
        c.count = coll->count - c.at < most ? coll->count - c.at : most;
        DDPI_NCCL_TRY(n, scatter, &c);
        DDP_TRY(add_up(&c));
        DDPI_NCCL_TRY(n, gather, &c);
    }
    return DDP_OK;
}
