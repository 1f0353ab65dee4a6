/* pack.c - one run of ddp_pack: list, go on from the ledger, decode, fill shards, finish.
 *
 * Workers decode ahead, this thread takes their results in the inputs' order, so that neither the
 * number of workers nor their speed decides what is written where. */
#include "tools/pack/pack.h"

#include <inttypes.h>
#include <stdio.h>

#include "ddp/thread.h"
#include "tools/pack/inputs.h"
#include "tools/pack/ledger.h"
#include "tools/pack/shard_writer.h"
#include "tools/pack/workers.h"

enum { PATH_BYTES = 4096 };

typedef struct packing {
    const ddpi_pack_opts *opts;
    const ddpi_inputs *inputs;
    ddpi_ledger *ledger;
    ddpi_shard_writer writer;
    size_t limit; /* bytes of a shard's images */
} packing;

/* Everything up to the input `next` is in shards then. */
static ddp_status close_shard(packing *p, int next)
{
    char path[PATH_BYTES];
    int images = p->writer.count;
    ddpi_shard_facts facts = {.next = next};
    DDP_TRY(ddpi_ledger_shard_path(p->ledger, path, sizeof path));
    DDP_TRY(ddpi_shard_writer_write(&p->writer, p->inputs->class_count, p->opts->channels, path,
                                    &facts.bytes, &facts.xxh3));
    DDP_TRY(ddpi_ledger_shard(p->ledger, &facts));
    if (!p->opts->quiet) {
        printf("%s: %d images, %.1f MiB; %d of %d files\n", path, images,
               (double)facts.bytes / (1 << 20), next, p->inputs->count);
        (void)fflush(stdout);
    }
    return DDP_OK;
}

static ddp_status take_image(packing *p, int index, const ddpi_picture *picture)
{
    if (p->writer.count > 0 && p->writer.used + ddpi_shard_writer_need(picture) > p->limit)
        DDP_TRY(close_shard(p, index));
    return ddpi_shard_writer_add(&p->writer, picture, p->inputs->files[index].label);
}

static ddp_status take_damaged(packing *p, int index, const char *reason)
{
    const char *path = p->inputs->files[index].path;
    if (p->opts->on_damaged == DDPI_DAMAGED_STOP)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s/%s: %s (--on-damaged skip would go on without it)",
                        p->inputs->folder, path, reason);
    if (!p->opts->quiet)
        fprintf(stderr, "ddp_pack: skipped %s/%s: %s\n", p->inputs->folder, path, reason);
    return ddpi_ledger_damaged(p->ledger, path, reason);
}

static ddp_status take_result(packing *p, int index, ddpi_result *result)
{
    ddp_status st;
    if (result->status == DDP_OK)
        st = take_image(p, index, &result->picture);
    else if (result->status == DDP_ERR_FORMAT)
        st = take_damaged(p, index, result->reason);
    else
        st = ddp_status_set(result->status, NULL, 0, "%s", result->reason);
    ddpi_picture_free(&result->picture);
    return st;
}

static ddp_status pack_files(packing *p)
{
    ddpi_workers *workers;
    ddpi_result result;
    ddp_status st = DDP_OK;
    int first = p->ledger->next;
    DDP_TRY(ddpi_workers_start(p->inputs, p->opts, first, &workers));
    for (int i = first; i < p->inputs->count && st == DDP_OK; i++) {
        ddpi_workers_next(workers, &result);
        st = take_result(p, i, &result);
    }
    ddpi_workers_stop(workers);
    DDP_TRY(st);
    if (p->writer.count > 0)
        DDP_TRY(close_shard(p, p->inputs->count));
    return ddpi_ledger_finish(p->ledger);
}

static void print_summary(const packing *p, int64_t begin_ns, int64_t images_before)
{
    const ddpi_ledger *l = p->ledger;
    double seconds = (double)(ddp_now_ns() - begin_ns) / 1e9;
    printf("%" PRId64 " images of %d classes in %" PRId64 " shards, %.1f MiB; %" PRId64
           " files skipped; %.1f s, %.0f images/s\n",
           l->images, p->inputs->class_count, l->shard_count, (double)l->bytes / (1 << 20),
           l->damaged_count, seconds, (double)(l->images - images_before) / seconds);
}

static ddp_status pack(packing *p)
{
    int64_t begin_ns = ddp_now_ns();
    DDP_TRY(ddpi_ledger_open(p->opts, p->inputs, p->ledger));
    int64_t before = p->ledger->images;
    if (p->ledger->finished) {
        if (!p->opts->quiet)
            printf("%s is complete: nothing to do\n", p->opts->output);
        return DDP_OK;
    }
    if (p->ledger->shard_count > 0 && !p->opts->quiet)
        printf("going on behind %" PRId64 " complete shards\n", p->ledger->shard_count);
    DDP_TRY(pack_files(p));
    if (!p->opts->quiet)
        print_summary(p, begin_ns, before);
    return DDP_OK;
}

ddp_status ddpi_pack_run(const ddpi_pack_opts *opts)
{
    ddpi_inputs inputs;
    ddpi_ledger ledger;
    packing p = {
        .opts = opts, .inputs = &inputs, .ledger = &ledger, .limit = (size_t)opts->shard_mb << 20};
    DDP_TRY(ddpi_inputs_list(opts->input, &inputs));
    ddp_status st = pack(&p);
    ddpi_shard_writer_free(&p.writer);
    ddpi_ledger_close(&ledger);
    ddpi_inputs_close(&inputs);
    return st;
}
