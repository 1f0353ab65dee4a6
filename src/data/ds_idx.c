/* ds_idx.c - Fashion-MNIST and MNIST: images and labels in IDX files, decoded once per node.
 *
 * A node's first rank decodes into memory that the node shares: first the images, then the labels,
 * as bytes. The others only look at it. Opening takes these steps, each of which all ranks take,
 * whatever failed before on one of them:
 *   1. first ranks open both files and read the headers;              agree
 *   2. rank 0's header goes to everybody; another node's must equal it
 *   3. all allocate the shared memory; first ranks decode and check;
 *   4. with several nodes: rank 0's hash of the data goes to everybody;   agree
 * so a node whose file is another version is refused instead of training on other data.
 *
 * fetch only reads: any number of threads. */
#include <stdio.h>

#include "data/idx_reader.h"
#include "ddp/dataset.h"
#include "ddp/fs.h"
#include "ddp/memory.h"

#define PATH_BYTES 4096
#define CLASSES    10

typedef struct idx_set {
    uint8_t *memory; /* shared by the node */
    const uint8_t *images, *labels;
    int64_t pixels; /* of one image */
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
} idx_source;

static const idx_source fashion_mnist_source = {
    "Fashion-MNIST",
    "the Debian package dataset-fashion-mnist brings them in /usr/share/datasets/fashion-mnist",
};
static const idx_source mnist_source = {
    "MNIST",
    "they come with the MNIST database, as four .gz files",
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

static ddp_status share_header(idx_files *files, ddp_comm *comm, ddpi_idx_header *header_out,
                               ddp_status *mine_out)
{
    ddpi_idx_header header = {0};
    if (ddp_comm_rank(comm) == 0) {
        DDP_ASSERT(files != NULL); /* rank 0 is its node's first */
        header = files->header;
    }
    DDP_TRY(ddp_comm_broadcast(comm, 0, &header, sizeof header));
    *header_out = header;
    *mine_out = DDP_OK;
    if (files != NULL &&
        (files->header.count != header.count || files->header.height != header.height ||
         files->header.width != header.width))
        *mine_out =
            DDP_FAIL(DDP_ERR_MISMATCH,
                     "%s has %lld images of %lld x %lld, expected %lld of %lld x %lld as on rank 0",
                     files->images_path, (long long)files->header.count,
                     (long long)files->header.height, (long long)files->header.width,
                     (long long)header.count, (long long)header.height, (long long)header.width);
    return DDP_OK;
}

/* Several nodes read their own files: they must hold the same data. */
static ddp_status compare_nodes(const idx_files *files, ddp_comm *comm, const uint8_t *memory,
                                size_t bytes, ddp_status *mine)
{
    uint64_t own = 0, hash;
    if (files != NULL && *mine == DDP_OK)
        own = ddp_hash64(memory, bytes);
    hash = own;
    DDP_TRY(ddp_comm_broadcast(comm, 0, &hash, sizeof hash));
    if (files != NULL && *mine == DDP_OK && own != hash)
        *mine = DDP_FAIL(
            DDP_ERR_MISMATCH,
            "%s and %s differ from rank 0's: their data has the hash %016llx, expected %016llx",
            files->images_path, files->labels_path, (unsigned long long)own,
            (unsigned long long)hash);
    return DDP_OK;
}

/* Step 2 to 4. On failure set->memory may be set; the caller frees it. */
static ddp_status fill(idx_files *files, ddp_comm *comm, idx_set *set, ddpi_idx_header *header)
{
    ddp_status mine, allocated;
    void *memory = NULL;
    DDP_TRY(share_header(files, comm, header, &mine));
    size_t bytes = (size_t)(header->data_bytes + header->count);
    allocated = ddp_comm_node_alloc(comm, bytes, &memory);
    set->memory = memory;
    if (mine == DDP_OK)
        mine = allocated;
    if (mine == DDP_OK && files != NULL)
        mine = decode(files, memory);
    if (ddp_comm_node_count(comm) > 1)
        DDP_TRY(compare_nodes(files, comm, memory, bytes, &mine));
    return ddp_comm_agree(comm, mine, "reading the data set");
}

static void idx_close(void *self, ddp_comm *comm)
{
    idx_set *set = self;
    if (set == NULL)
        return;
    ddp_comm_node_free(comm, set->memory);
    ddp_free(set);
}

static ddp_status open_set(const idx_source *source, const ddp_data_opts *opts, ddp_split split,
                           ddp_comm *comm, idx_set **set_out, ddpi_idx_header *header)
{
    idx_files *files = NULL;
    idx_set *set = NULL;
    ddp_status st = DDP_ALLOC(set, 1);
    if (st == DDP_OK && ddp_comm_node_rank(comm) == 0) {
        st = DDP_ALLOC(files, 1);
        if (st == DDP_OK)
            st = open_files(source, opts->data_dir, split, files);
    }
    st = ddp_comm_agree(comm, st, "opening the data set");
    if (st == DDP_OK)
        st = fill(files, comm, set, header);
    close_files(files);
    if (st != DDP_OK) {
        idx_close(set, comm);
        return st;
    }
    *set_out = set;
    return DDP_OK;
}

static ddp_status open_idx(const idx_source *source, const ddp_data_opts *opts, ddp_split split,
                           ddp_comm *comm, ddp_dataset_info *info_out, void **self_out)
{
    ddpi_idx_header header = {0};
    idx_set *set;
    DDP_TRY(open_set(source, opts, split, comm, &set, &header));
    set->images = set->memory;
    set->labels = set->memory + header.data_bytes;
    set->pixels = header.height * header.width;
    *info_out = (ddp_dataset_info){{3, {1, header.height, header.width}}, header.count, CLASSES};
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

static const ddp_dataset_ops fashion_mnist_ops = {
    "fashion-mnist",
    fashion_mnist_open,
    idx_fetch,
    idx_close,
};

static const ddp_dataset_ops mnist_ops = {
    "mnist",
    mnist_open,
    idx_fetch,
    idx_close,
};

const ddp_dataset_ops *ddp_dataset_fashion_mnist(void)
{
    return &fashion_mnist_ops;
}

const ddp_dataset_ops *ddp_dataset_mnist(void)
{
    return &mnist_ops;
}
