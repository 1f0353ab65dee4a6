/* ds_idx.c - Fashion-MNIST and MNIST: images and labels in IDX files, decoded once per node.
 *
 * Images lie first, then the labels, as bytes, in memory that the node's ranks share
 * (node_copy.h).
 *
 * fetch only reads: any number of threads. */
#include <stdio.h>
#include <string.h>

#include "data/idx_reader.h"
#include "data/node_copy.h"
#include "ddp/dataset.h"
#include "ddp/fs.h"
#include "ddp/memory.h"

#define PATH_BYTES 4096
#define CLASSES    10

typedef struct idx_set {
    ddpi_node_copy copy;
    const uint8_t *images, *labels;
    int64_t height, width, pixels; /* of one image */
} idx_set;

/* What a format in the usual file names needs beside them. */
typedef struct idx_source {
    const char *title;
    const char *where; /* how one comes by the files */
    const char *const *class_names;
} idx_source;

/* One split's pair of files. */
typedef struct idx_files {
    const idx_source *source;
    const char *dir;
    ddp_split split;
    char images_path[PATH_BYTES], labels_path[PATH_BYTES];
    ddpi_idx_reader *images, *labels;
    ddpi_idx_header header; /* of the images */
} idx_files;

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

/* ---- files, on the ranks that decode ---- */

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

static ddp_status open_files(void *self, void *header_out)
{
    idx_files *files = self;
    const idx_source *source = files->source;
    const char *dir = files->dir;
    bool train = files->split == DDP_SPLIT_TRAIN;
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
    memcpy(header_out, &files->header, sizeof files->header);
    return ddpi_idx_check_counts(files->images_path, &files->header, files->labels_path, &labels);
}

static ddp_status check_header(void *self, const void *header)
{
    const idx_files *files = self;
    const ddpi_idx_header *own = &files->header, *want = header;
    if (own->count == want->count && own->height == want->height && own->width == want->width)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_MISMATCH,
                    "%s has %lld images of %lld x %lld, expected %lld of %lld x %lld as on rank 0",
                    files->images_path, (long long)own->count, (long long)own->height,
                    (long long)own->width, (long long)want->count, (long long)want->height,
                    (long long)want->width);
}

static size_t data_bytes(const void *self, const void *header)
{
    (void)self;
    const ddpi_idx_header *h = header;
    return (size_t)(h->data_bytes + h->count);
}

static ddp_status decode(void *self, uint8_t *memory)
{
    idx_files *files = self;
    const ddpi_idx_header *header = &files->header;
    uint8_t *labels = memory + header->data_bytes;
    DDP_TRY(ddpi_idx_read_data(files->labels, labels));
    DDP_TRY(ddpi_idx_check_labels(files->labels_path, labels, header->count, CLASSES));
    return ddpi_idx_read_data(files->images, memory);
}

static void name_files(const void *self, char *text, size_t text_bytes)
{
    const idx_files *files = self;
    snprintf(text, text_bytes, "%s and %s", files->images_path, files->labels_path);
}

/* ---- opening, on all ranks ---- */

static void idx_close(void *self, ddp_comm *comm)
{
    idx_set *set = self;
    if (set == NULL)
        return;
    ddpi_node_copy_close(&set->copy, comm);
    ddp_free(set);
}

static ddp_status open_copy(idx_files *files, ddp_comm *comm, ddpi_idx_header *header,
                            idx_set **set_out)
{
    const ddpi_node_source source = {files,      sizeof *header, open_files, check_header,
                                     data_bytes, decode,         name_files};
    idx_set *set = NULL;
    ddp_status st = DDP_ALLOC(set, 1);
    if (st != DDP_OK)
        return ddp_comm_agree(comm, st, "opening the data set");
    st = ddpi_node_copy_open(&source, comm, header, &set->copy);
    ddpi_idx_close(files->images);
    ddpi_idx_close(files->labels);
    if (st != DDP_OK) {
        ddp_free(set);
        return st;
    }
    *set_out = set;
    return DDP_OK;
}

static ddp_status open_idx(const idx_source *source, const ddp_data_opts *opts, ddp_split split,
                           ddp_comm *comm, ddp_dataset_info *info_out, void **self_out)
{
    idx_files files = {.source = source, .dir = opts->data_dir, .split = split};
    ddpi_idx_header header;
    idx_set *set = NULL;
    DDP_TRY(open_copy(&files, comm, &header, &set));
    set->images = set->copy.memory;
    set->labels = set->copy.memory + header.data_bytes;
    set->height = header.height;
    set->width = header.width;
    set->pixels = header.height * header.width;
    *info_out = (ddp_dataset_info){.shape = {3, {1, header.height, header.width}},
                                   .count = header.count,
                                   .classes = CLASSES,
                                   .class_names = source->class_names};
    *self_out = set;
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
