/* ds_idx.c - Fashion-MNIST and MNIST: images and labels in IDX files, decoded once per node.
 *
 * A node's first rank decodes into memory that the node shares: first the images, then the labels,
 * as bytes. The others only look at it. Opening takes these steps, each of which all ranks take,
 * whatever failed before on one of them:
 *   1. first ranks open both files and read the headers; all agree
 *   2. rank 0's header goes to everybody; another node's must equal it
 *   3. all allocate the shared memory; first ranks decode and check
 *   4. with several nodes, rank 0's hash of the data goes to everybody; all agree
 * so a node whose file is another version is refused instead of training on other data.
 *
 * Where shared memory is too small (containers), every rank decodes a copy of its own in step 3.
 *
 * fetch only reads: any number of threads. */
#include <stdio.h>

#include "data/idx_reader.h"
#include "ddp/dataset.h"
#include "ddp/fs.h"
#include "ddp/log.h"
#include "ddp/memory.h"

#define PATH_BYTES 4096
#define CLASSES    10

typedef struct idx_set {
    uint8_t *memory;  /* the node's */
    size_t own_bytes; /* 0; else memory is this rank's own, and so large */
    const uint8_t *images, *labels;
    int64_t height, width, pixels; /* of one image */
} idx_set;

/* One split's pair of files. */
typedef struct idx_files {
    char images_path[PATH_BYTES], labels_path[PATH_BYTES];
    ddpi_idx_reader *images, *labels;
    ddpi_idx_header header; /* of the images */
} idx_files;

/* What a format in the usual file names needs beside them. */
typedef struct idx_source {
    const char *title;
    const char *where; /* how one comes by the files */
    const char *const *class_names;
} idx_source;

static const char *const garments[CLASSES] = {
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot",
};
static const char *const digits[CLASSES] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};

static const idx_source fashion_mnist_source = {
    "Fashion-MNIST",
    "the Debian package dataset-fashion-mnist brings them in /usr/share/datasets/fashion-mnist",
    garments,
};
static const idx_source mnist_source = {
    "MNIST",
    "they come with the MNIST database, as four .gz files",
    digits,
};

/* ---- files, on a node's first rank ---- */

static ddp_status find_file(const idx_source *source, const char *dir, const char *name,
                            char path[PATH_BYTES])
{
    char packed[PATH_BYTES];
    int length = snprintf(packed, sizeof packed, "%s.gz", name);
    DDP_ASSERT(length > 0 && (size_t)length < sizeof packed);
    DDP_TRY(ddp_fs_join(path, PATH_BYTES, dir, name));
    if (ddp_fs_exists(path))
        return DDP_OK;
    DDP_TRY(ddp_fs_join(path, PATH_BYTES, dir, packed));
    if (ddp_fs_exists(path))
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_IO,
                    "no %s and no %s in %s; --data-dir names the folder with the files of %s (%s)",
                    name, packed, dir, source->title, source->where);
}

static ddp_status open_files(const idx_source *source, const char *dir, ddp_split split,
                             idx_files *files)
{
    bool train = split == DDP_SPLIT_TRAIN;
    ddpi_idx_header labels;
    if (dir == NULL || dir[0] == 0)
        return DDP_FAIL(DDP_ERR_USAGE, "--data-dir is empty, expected the folder with %s (%s)",
                        source->title, source->where);
    DDP_TRY(find_file(source, dir, train ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte",
                      files->images_path));
    DDP_TRY(find_file(source, dir, train ? "train-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte",
                      files->labels_path));
    DDP_TRY(ddpi_idx_open_file(files->images_path, &files->images));
    DDP_TRY(ddpi_idx_open_file(files->labels_path, &files->labels));
    DDP_TRY(ddpi_idx_read_header(files->images, DDPI_IDX_IMAGES, &files->header));
    DDP_TRY(ddpi_idx_read_header(files->labels, DDPI_IDX_LABELS, &labels));
    return ddpi_idx_check_counts(files->images_path, &files->header, files->labels_path, &labels);
}

static void close_files(idx_files *files)
{
    if (files == NULL)
        return;
    ddpi_idx_close(files->images);
    ddpi_idx_close(files->labels);
    ddp_free(files);
}

static ddp_status decode(idx_files *files, uint8_t *memory)
{
    const ddpi_idx_header *header = &files->header;
    uint8_t *labels = memory + header->data_bytes;
    DDP_TRY(ddpi_idx_read_data(files->labels, labels));
    DDP_TRY(ddpi_idx_check_labels(files->labels_path, labels, header->count, CLASSES));
    return ddpi_idx_read_data(files->images, memory);
}

/* ---- opening, on all ranks ---- */

/* One rank's part in opening. */
typedef struct opening {
    const idx_source *source;
    const char *dir;
    ddp_split split;
    ddp_comm *comm;
    idx_files *files; /* NULL: this rank decodes nothing */
    idx_set *set;
    ddpi_idx_header header; /* rank 0's, from step 2 on */
    size_t bytes;           /* of images and labels */
} opening;

static ddp_status open_own_files(opening *o)
{
    DDP_TRY(DDP_ALLOC(o->files, 1));
    return open_files(o->source, o->dir, o->split, o->files);
}

static ddp_status check_header(const opening *o)
{
    const ddpi_idx_header *own = &o->files->header, *want = &o->header;
    if (own->count == want->count && own->height == want->height && own->width == want->width)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_MISMATCH,
                    "%s has %lld images of %lld x %lld, expected %lld of %lld x %lld as on rank 0",
                    o->files->images_path, (long long)own->count, (long long)own->height,
                    (long long)own->width, (long long)want->count, (long long)want->height,
                    (long long)want->width);
}

static ddp_status share_header(opening *o)
{
    if (ddp_comm_rank(o->comm) == 0) {
        DDP_ASSERT(o->files != NULL); /* rank 0 is its node's first */
        o->header = o->files->header;
    }
    DDP_TRY(ddp_comm_broadcast(o->comm, 0, &o->header, sizeof o->header));
    o->bytes = (size_t)(o->header.data_bytes + o->header.count);
    return DDP_OK;
}

/* node_alloc has the same verdict on all ranks, so all of them turn to copies of their own or none.
 */
static ddp_status allocate(opening *o, bool *own_out)
{
    void *memory = NULL;
    bool alone = ddp_comm_node_count(o->comm) == ddp_comm_world(o->comm);
    ddp_status st = ddp_comm_node_alloc(o->comm, o->bytes, &memory);
    *own_out = st == DDP_ERR_NOMEM && !alone;
    if (*own_out) {
        if (ddp_comm_rank(o->comm) == 0)
            ddp_warn("every rank decodes a data set of its own: %s", ddp_status_message());
        st = ddp_large_alloc(o->bytes, &memory);
        if (st == DDP_OK)
            o->set->own_bytes = o->bytes;
        if (st == DDP_OK && o->files == NULL)
            st = open_own_files(o);
    }
    o->set->memory = memory;
    return st;
}

/* Who decoded for himself must have got what rank 0 got. */
static ddp_status compare(const opening *o, ddp_status *mine)
{
    uint64_t own = 0, hash;
    bool decoded = o->files != NULL && *mine == DDP_OK;
    if (decoded)
        own = ddp_hash64(o->set->memory, o->bytes);
    hash = own;
    DDP_TRY(ddp_comm_broadcast(o->comm, 0, &hash, sizeof hash));
    if (decoded && own != hash)
        *mine = DDP_FAIL(
            DDP_ERR_MISMATCH,
            "%s and %s differ from rank 0's: their data has the hash %016llx, expected %016llx",
            o->files->images_path, o->files->labels_path, (unsigned long long)own,
            (unsigned long long)hash);
    return DDP_OK;
}

/* Step 2 to 4. On failure o->set may have memory; the caller frees it. */
static ddp_status fill(opening *o)
{
    bool own;
    DDP_TRY(share_header(o));
    ddp_status mine = allocate(o, &own);
    if (mine == DDP_OK && o->files != NULL)
        mine = check_header(o);
    if (mine == DDP_OK && o->files != NULL)
        mine = decode(o->files, o->set->memory);
    if (own || ddp_comm_node_count(o->comm) > 1)
        DDP_TRY(compare(o, &mine));
    return ddp_comm_agree(o->comm, mine, "reading the data set");
}

static void idx_close(void *self, ddp_comm *comm)
{
    idx_set *set = self;
    if (set == NULL)
        return;
    if (set->own_bytes > 0)
        ddp_large_free(set->memory, set->own_bytes);
    else
        ddp_comm_node_free(comm, set->memory);
    ddp_free(set);
}

static ddp_status open_set(opening *o)
{
    ddp_status st = DDP_ALLOC(o->set, 1);
    if (st == DDP_OK && ddp_comm_node_rank(o->comm) == 0)
        st = open_own_files(o);
    st = ddp_comm_agree(o->comm, st, "opening the data set");
    if (st == DDP_OK)
        st = fill(o);
    close_files(o->files);
    if (st != DDP_OK)
        idx_close(o->set, o->comm);
    return st;
}

static ddp_status open_idx(const idx_source *source, const ddp_data_opts *opts, ddp_split split,
                           ddp_comm *comm, ddp_dataset_info *info_out, void **self_out)
{
    opening o = {.source = source, .dir = opts->data_dir, .split = split, .comm = comm};
    DDP_TRY(open_set(&o));
    const ddpi_idx_header *header = &o.header;
    o.set->images = o.set->memory;
    o.set->labels = o.set->memory + header->data_bytes;
    o.set->height = header->height;
    o.set->width = header->width;
    o.set->pixels = header->height * header->width;
    *info_out = (ddp_dataset_info){.shape = {3, {1, header->height, header->width}},
                                   .count = header->count,
                                   .classes = CLASSES,
                                   .class_names = source->class_names};
    *self_out = o.set;
    return DDP_OK;
}

static ddp_status fashion_mnist_open(const ddp_data_opts *opts, ddp_split split, ddp_comm *comm,
                                     ddp_dataset_info *info_out, void **self_out)
{
    return open_idx(&fashion_mnist_source, opts, split, comm, info_out, self_out);
}

static ddp_status mnist_open(const ddp_data_opts *opts, ddp_split split, ddp_comm *comm,
                             ddp_dataset_info *info_out, void **self_out)
{
    return open_idx(&mnist_source, opts, split, comm, info_out, self_out);
}

/* A division rounds exactly, as a product with 1/255 would not, and as vector code it beats a
 * table. */
static void scale(const uint8_t *restrict src, float *restrict dst, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dst[i] = (float)src[i] / 255.0f;
}

static ddp_status idx_fetch(void *self, const int64_t *indices, int64_t n, float *dst,
                            int32_t *labels)
{
    const idx_set *set = self;
    for (int64_t i = 0; i < n; i++) {
        scale(set->images + indices[i] * set->pixels, dst + i * set->pixels, set->pixels);
        labels[i] = set->labels[indices[i]];
    }
    return DDP_OK;
}

static ddp_status idx_image(void *self, int64_t index, ddp_image *image_out)
{
    const idx_set *set = self;
    *image_out = (ddp_image){.pixels = set->images + index * set->pixels,
                             .bytes = true,
                             .channels = 1,
                             .height = set->height,
                             .width = set->width,
                             .stride_c = set->pixels,
                             .stride_y = set->width,
                             .stride_x = 1,
                             .label = set->labels[index]};
    return DDP_OK;
}

static const ddp_dataset_ops fashion_mnist_ops = {
    "fashion-mnist", fashion_mnist_open, idx_fetch, idx_close, idx_image,
};

static const ddp_dataset_ops mnist_ops = {
    "mnist", mnist_open, idx_fetch, idx_close, idx_image,
};

const ddp_dataset_ops *ddp_dataset_fashion_mnist(void)
{
    return &fashion_mnist_ops;
}

const ddp_dataset_ops *ddp_dataset_mnist(void)
{
    return &mnist_ops;
}
