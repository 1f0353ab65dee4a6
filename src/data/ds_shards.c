/* ds_shards.c - the data set "shards": DIR/train and DIR/test as ddp_pack wrote them.
 *
 * Every rank maps every shard, so that a node's page cache holds the one copy of the pixels, and
 * images are lent from the maps. What a rank reads at opening is the manifest and the shards'
 * indices, and those are compared with each other; with verify_data the ranks of a node share out
 * the shards and compare whole files with the manifest's checksums. All ranks must have the same
 * manifest, and all fail alike.
 *
 * Nothing changes after opening: any thread. */
#include <inttypes.h>
#include <stdio.h>

#include "data/shard_manifest.h"
#include "ddp/dataset.h"
#include "ddp/fs.h"
#include "ddp/memory.h"

#define PATH_BYTES 4096

typedef struct shard_set {
    char dir[PATH_BYTES];
    ddpi_shard_manifest manifest;
    uint64_t manifest_xxh3;
    ddp_shard *shards; /* manifest.shard_count */
    int64_t *first;    /* the shards' first images, and behind them the number of all */
} shard_set;

/* What the indices of all shards say together. */
typedef struct totals {
    int64_t min_height, max_height, min_width, max_width;
    int64_t *class_images;
} totals;

static ddp_status read_manifest(shard_set *set)
{
    char path[PATH_BYTES], *text;
    size_t bytes;
    DDP_TRY(ddp_fs_join(path, sizeof path, set->dir, DDP_SHARD_MANIFEST));
    if (!ddp_fs_exists(path))
        return DDP_FAIL(DDP_ERR_IO,
                        "there is no %s; --data-dir names a folder with train/ and test/, each "
                        "packed by ddp_pack to its end",
                        path);
    DDP_TRY(ddp_fs_read(path, DDPI_MANIFEST_LIMIT_BYTES, &text, &bytes));
    set->manifest_xxh3 = ddp_hash64(text, bytes);
    ddp_status st = ddpi_shard_manifest_parse(text, bytes, path, &set->manifest);
    ddp_free(text);
    return st;
}

static ddp_status shard_path(const shard_set *set, int64_t i, char path[PATH_BYTES])
{
    return ddp_fs_join(path, PATH_BYTES, set->dir, set->manifest.shards[i].name);
}

static ddp_status check_shard(const shard_set *set, int64_t i, const char *path)
{
    const ddpi_shard_manifest *m = &set->manifest;
    const ddpi_shard_file *want = &m->shards[i];
    const ddp_shard_header *found = set->shards[i].header;
    if (found->count == want->images && (int64_t)found->file_bytes == want->bytes &&
        found->classes == m->class_count && found->channels == m->channels)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_FORMAT,
                    "%s: has %u images of %u channels and %u classes in %" PRIu64
                    " bytes, the manifest says %" PRId64 " of %" PRId64 " and %" PRId64
                    " in %" PRId64,
                    path, found->count, found->channels, found->classes, found->file_bytes,
                    want->images, m->channels, m->class_count, want->bytes);
}

static void add_to_totals(const ddp_shard *shard, totals *t)
{
    for (uint32_t i = 0; i < shard->header->count; i++) {
        const ddp_shard_entry *e = &shard->entries[i];
        t->min_height = e->height < t->min_height ? e->height : t->min_height;
        t->max_height = e->height > t->max_height ? e->height : t->max_height;
        t->min_width = e->width < t->min_width ? e->width : t->min_width;
        t->max_width = e->width > t->max_width ? e->width : t->max_width;
        t->class_images[e->label]++;
    }
}

static ddp_status check_totals(const shard_set *set, const totals *t)
{
    const ddpi_shard_manifest *m = &set->manifest;
    if (t->min_height != m->min_height || t->max_height != m->max_height ||
        t->min_width != m->min_width || t->max_width != m->max_width)
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: images are %" PRId64 " to %" PRId64 " high and %" PRId64 " to %" PRId64
                        " wide, the manifest says %" PRId64 " to %" PRId64 " and %" PRId64
                        " to %" PRId64,
                        set->dir, t->min_height, t->max_height, t->min_width, t->max_width,
                        m->min_height, m->max_height, m->min_width, m->max_width);
    for (int64_t i = 0; i < m->class_count; i++)
        if (t->class_images[i] != m->class_images[i])
            return DDP_FAIL(DDP_ERR_FORMAT,
                            "%s: class \"%.80s\" has %" PRId64
                            " images, the manifest says %" PRId64,
                            set->dir, m->classes[i], t->class_images[i], m->class_images[i]);
    return DDP_OK;
}

static ddp_status open_shards(shard_set *set, totals *t)
{
    const ddpi_shard_manifest *m = &set->manifest;
    char path[PATH_BYTES];
    DDP_TRY(DDP_ALLOC(set->shards, (size_t)m->shard_count));
    DDP_TRY(DDP_ALLOC(set->first, (size_t)m->shard_count + 1));
    for (int64_t i = 0; i < m->shard_count; i++) {
        DDP_TRY(shard_path(set, i, path));
        DDP_TRY(ddp_shard_open(path, &set->shards[i]));
        DDP_TRY(check_shard(set, i, path));
        add_to_totals(&set->shards[i], t);
        set->first[i + 1] = set->first[i] + m->shards[i].images;
    }
    return check_totals(set, t);
}

static ddp_status open_local(shard_set *set, const ddp_data_opts *opts, ddp_split split)
{
    totals t = {.min_height = INT64_MAX, .min_width = INT64_MAX};
    if (opts->data_dir == NULL || opts->data_dir[0] == 0)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "--data-dir is empty, expected the folder with train/ and test/");
    DDP_TRY(ddp_fs_join(set->dir, sizeof set->dir, opts->data_dir,
                        split == DDP_SPLIT_TRAIN ? "train" : "test"));
    DDP_TRY(read_manifest(set));
    DDP_TRY(DDP_ALLOC(t.class_images, (size_t)set->manifest.class_count));
    ddp_status st = open_shards(set, &t);
    ddp_free(t.class_images);
    return st;
}

static ddp_status compare_ranks(const shard_set *set, ddp_comm *comm)
{
    char text[64];
    snprintf(text, sizeof text, "manifest=%016" PRIx64 "\n", set->manifest_xxh3);
    return ddp_comm_fingerprint(comm, text, "the packed data set");
}

/* The ranks of a node share out the shards. */
static ddp_status verify(const shard_set *set, ddp_comm *comm)
{
    char path[PATH_BYTES];
    for (int64_t i = ddp_comm_node_rank(comm); i < set->manifest.shard_count;
         i += ddp_comm_node_size(comm)) {
        const ddp_shard *shard = &set->shards[i];
        uint64_t want = set->manifest.shards[i].xxh3;
        uint64_t found = ddp_hash64(shard->bytes, shard->byte_count);
        DDP_TRY(shard_path(set, i, path));
        if (found != want)
            return DDP_FAIL(DDP_ERR_FORMAT,
                            "%s: has the checksum %016" PRIx64 ", the manifest says %016" PRIx64
                            ": it is damaged, pack it again",
                            path, found, want);
    }
    return DDP_OK;
}

static void shards_close(void *self, ddp_comm *comm)
{
    shard_set *set = self;
    (void)comm;
    if (set == NULL)
        return;
    for (int64_t i = 0; set->shards != NULL && i < set->manifest.shard_count; i++)
        ddp_shard_close(&set->shards[i]);
    ddp_free(set->shards);
    ddp_free(set->first);
    ddpi_shard_manifest_close(&set->manifest);
    ddp_free(set);
}

static void fill_info(const shard_set *set, ddp_dataset_info *info_out)
{
    const ddpi_shard_manifest *m = &set->manifest;
    bool variable = m->min_height < m->max_height || m->min_width < m->max_width;
    int64_t height = variable ? 0 : m->min_height, width = variable ? 0 : m->min_width;
    *info_out = (ddp_dataset_info){.shape = {3, {m->channels, height, width}},
                                   .count = m->images,
                                   .classes = m->class_count,
                                   .variable = variable,
                                   .class_names = m->classes};
}

static ddp_status shards_open(const ddp_data_opts *opts, ddp_split split, ddp_comm *comm,
                              ddp_dataset_info *info_out, void **self_out)
{
    shard_set *set = NULL;
    ddp_status st = DDP_ALLOC(set, 1);
    if (st == DDP_OK)
        st = open_local(set, opts, split);
    DDP_TRY_GOTO(st, ddp_comm_agree(comm, st, "opening the data set"), err_close);
    DDP_TRY_GOTO(st, compare_ranks(set, comm), err_close);
    if (opts->verify_data)
        DDP_TRY_GOTO(st, ddp_comm_agree(comm, verify(set, comm), "verifying the data set"),
                     err_close);
    fill_info(set, info_out);
    *self_out = set;
    return DDP_OK;
err_close:
    shards_close(set, comm);
    return st;
}

static int64_t shard_of(const shard_set *set, int64_t index)
{
    int64_t low = 0, high = set->manifest.shard_count; /* it is within [low, high) */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (set->first[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static ddp_status shards_image(void *self, int64_t index, ddp_image *image_out)
{
    const shard_set *set = self;
    int64_t s = shard_of(set, index);
    const ddp_shard_entry *e = &set->shards[s].entries[index - set->first[s]];
    *image_out = (ddp_image){.pixels = set->shards[s].bytes + e->offset,
                             .bytes = true,
                             .channels = e->channels,
                             .height = e->height,
                             .width = e->width,
                             .stride_c = 1,
                             .stride_y = (int64_t)e->width * e->channels,
                             .stride_x = e->channels,
                             .label = (int32_t)e->label};
    return DDP_OK;
}

const ddp_dataset_ops *ddp_dataset_shards(void)
{
    static const ddp_dataset_ops ops = {
        .name = "shards", .open = shards_open, .close = shards_close, .image = shards_image};
    return &ops;
}
