/* ds_cifar.c - CIFAR-10 and CIFAR-100 in their binary form, held once per node.
 *
 * A record is one label byte (CIFAR-100: a coarse and a fine one, of which the fine one is the
 * class), then 32 x 32 bytes of red, of green and of blue. Records go into the node's memory as
 * they stand in the files (node_copy.h) and images are lent from there, planes first: there is
 * nothing to decode, but a copy stays the same when somebody replaces the files during a run.
 *
 * Files are whole records, CIFAR-10's five training files of one length, and every label is
 * checked. The class names come from rank 0's text file with the header. fetch and image only read:
 * any number of threads. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/node_copy.h"
#include "ddp/dataset.h"
#include "ddp/fs.h"
#include "ddp/memory.h"

enum {
    PATH_BYTES = 4096,
    SIDE = 32,
    CHANNELS = 3,
    PLANE = SIDE * SIDE,
    PIXELS = CHANNELS * PLANE,
    MAX_CLASSES = 100,
    MAX_FILES = 5,
    NAME_BYTES = 32,
    NAMES_LIMIT_BYTES = 65536,
    MAX_RECORDS = 10000000 /* of a file; the original ones have 50000 at most */
};

typedef struct cifar_format {
    const char *title;
    const char *where; /* how one comes by the files */
    const char *train_files[MAX_FILES], *test_files[MAX_FILES];
    const char *names_file;
    int classes;
    int label_bytes; /* in front of a record's pixels; the last one is the class */
} cifar_format;

static const cifar_format cifar10_format = {
    "CIFAR-10",
    "the archive of its binary version has them in cifar-10-batches-bin",
    {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
     "data_batch_5.bin"},
    {"test_batch.bin"},
    "batches.meta.txt",
    10,
    1,
};
static const cifar_format cifar100_format = {
    "CIFAR-100",
    "the archive of its binary version has them in cifar-100-binary",
    {"train.bin"},
    {"test.bin"},
    "fine_label_names.txt",
    100,
    2,
};

/* What rank 0 tells everybody. */
typedef struct cifar_header {
    int64_t count;
    char names[MAX_CLASSES][NAME_BYTES];
} cifar_header;

/* One split's files, on a rank that reads them. */
typedef struct cifar_files {
    const cifar_format *format;
    const char *dir;
    const char *const *names;
    char paths[MAX_FILES][PATH_BYTES];
    int64_t counts[MAX_FILES]; /* records */
    int file_count;
    cifar_header header;
} cifar_files;

typedef struct cifar_set {
    ddpi_node_copy copy;
    int64_t record_bytes, label_bytes;
    cifar_header header;
    const char *class_names[MAX_CLASSES];
} cifar_set;

/* ---- files, on the ranks that read them ---- */

static int64_t record_bytes(const cifar_format *format)
{
    return format->label_bytes + PIXELS;
}

static ddp_status count_records(const cifar_format *format, const char *path, int64_t *count_out)
{
    struct stat info;
    int64_t record = record_bytes(format);
    if (stat(path, &info) != 0)
        return DDP_FAIL(DDP_ERR_IO, "%s: %s; --data-dir names the folder with the files of %s (%s)",
                        path, strerror(errno), format->title, format->where);
    if (!S_ISREG(info.st_mode))
        return DDP_FAIL(DDP_ERR_IO, "%s is not a regular file", path);
    if (info.st_size == 0 || info.st_size % record != 0 || info.st_size / record > MAX_RECORDS)
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: the file has %lld bytes, expected %s's records of %lld each (%d label "
                        "byte%s and %d pixel bytes), 1 to %d of them",
                        path, (long long)info.st_size, format->title, (long long)record,
                        format->label_bytes, format->label_bytes > 1 ? "s" : "", PIXELS,
                        MAX_RECORDS);
    *count_out = info.st_size / record;
    return DDP_OK;
}

/* One name a line; blank lines may follow. */
static ddp_status split_names(const cifar_format *format, const char *path, char *text,
                              cifar_header *header)
{
    int count = 0;
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL;) {
        size_t length = strlen(line);
        if (length > 0 && line[length - 1] == '\r')
            line[--length] = 0;
        if (length == 0)
            continue;
        if (count == format->classes || length >= NAME_BYTES)
            return DDP_FAIL(DDP_ERR_FORMAT,
                            "%s: found \"%.40s\" as name %d, expected %d names of at most %d bytes",
                            path, line, count + 1, format->classes, NAME_BYTES - 1);
        memcpy(header->names[count++], line, length + 1);
    }
    if (count != format->classes)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: has %d names, expected %d, one a line", path, count,
                        format->classes);
    return DDP_OK;
}

static ddp_status read_names(const cifar_files *files, cifar_header *header)
{
    char path[PATH_BYTES], *text;
    size_t bytes;
    DDP_TRY(ddp_fs_join(path, sizeof path, files->dir, files->format->names_file));
    DDP_TRY(ddp_fs_read(path, NAMES_LIMIT_BYTES, &text, &bytes));
    ddp_status st = memchr(text, 0, bytes) == NULL
                        ? split_names(files->format, path, text, header)
                        : DDP_FAIL(DDP_ERR_FORMAT, "%s: has a byte 0, expected a text", path);
    ddp_free(text);
    return st;
}

static ddp_status open_files(void *self, void *header_out)
{
    cifar_files *files = self;
    cifar_header *header = header_out;
    if (files->dir == NULL || files->dir[0] == 0)
        return DDP_FAIL(DDP_ERR_USAGE, "--data-dir is empty, expected the folder with %s (%s)",
                        files->format->title, files->format->where);
    for (int i = 0; i < MAX_FILES && files->names[i] != NULL; i++) {
        DDP_TRY(ddp_fs_join(files->paths[i], PATH_BYTES, files->dir, files->names[i]));
        DDP_TRY(count_records(files->format, files->paths[i], &files->counts[i]));
        if (files->counts[i] != files->counts[0])
            return DDP_FAIL(DDP_ERR_FORMAT, "%s: has %lld records, expected %lld as %s has",
                            files->paths[i], (long long)files->counts[i],
                            (long long)files->counts[0], files->paths[0]);
        header->count += files->counts[i];
        files->file_count = i + 1;
    }
    DDP_TRY(read_names(files, header));
    files->header = *header;
    return DDP_OK;
}

static ddp_status check_header(void *self, const void *header)
{
    const cifar_files *files = self;
    const cifar_header *own = &files->header, *want = header;
    if (own->count != want->count)
        return DDP_FAIL(DDP_ERR_MISMATCH,
                        "%s: %lld images of this split, expected %lld as on rank 0", files->dir,
                        (long long)own->count, (long long)want->count);
    for (int i = 0; i < files->format->classes; i++)
        if (strcmp(own->names[i], want->names[i]) != 0)
            return DDP_FAIL(DDP_ERR_MISMATCH,
                            "%s: class %d is \"%s\", expected \"%s\" as on rank 0", files->dir, i,
                            own->names[i], want->names[i]);
    return DDP_OK;
}

static size_t data_bytes(const void *self, const void *header)
{
    const cifar_files *files = self;
    return (size_t)(((const cifar_header *)header)->count * record_bytes(files->format));
}

static ddp_status read_file(const char *path, uint8_t *dst, size_t bytes)
{
    size_t got = 0;
    ssize_t piece = 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return DDP_FAIL(DDP_ERR_IO, "open %s: %s", path, strerror(errno));
    while (got < bytes && piece != 0) {
        piece = read(fd, dst + got, bytes - got);
        if (piece < 0 && errno != EINTR)
            break;
        got += piece > 0 ? (size_t)piece : 0;
    }
    ddp_status st = DDP_OK;
    if (piece < 0)
        st = DDP_FAIL(DDP_ERR_IO, "read %s: %s", path, strerror(errno));
    else if (got < bytes)
        st = DDP_FAIL(DDP_ERR_FORMAT, "%s: ends after %zu bytes, expected %zu", path, got, bytes);
    (void)close(fd);
    return st;
}

static ddp_status check_labels(const cifar_format *format, const char *path, const uint8_t *records,
                               int64_t count)
{
    int64_t record = record_bytes(format);
    for (int64_t i = 0; i < count; i++) {
        int label = records[i * record + format->label_bytes - 1];
        if (label >= format->classes)
            return DDP_FAIL(DDP_ERR_FORMAT, "%s: the label of record %lld is %d, expected 0 to %d",
                            path, (long long)i, label, format->classes - 1);
    }
    return DDP_OK;
}

static ddp_status decode(void *self, uint8_t *memory)
{
    const cifar_files *files = self;
    for (int i = 0; i < files->file_count; i++) {
        size_t bytes = (size_t)(files->counts[i] * record_bytes(files->format));
        DDP_TRY(read_file(files->paths[i], memory, bytes));
        DDP_TRY(check_labels(files->format, files->paths[i], memory, files->counts[i]));
        memory += bytes;
    }
    return DDP_OK;
}

static void name_files(const void *self, char *text, size_t text_bytes)
{
    const cifar_files *files = self;
    snprintf(text, text_bytes, "the %s files in %s", files->format->title, files->dir);
}

/* ---- opening, on all ranks ---- */

static ddp_status open_copy(cifar_files *files, ddp_comm *comm, cifar_header *header,
                            ddpi_node_copy *copy_out)
{
    const ddpi_node_source source = {files,      sizeof *header, open_files, check_header,
                                     data_bytes, decode,         name_files};
    return ddpi_node_copy_open(&source, comm, header, copy_out);
}

static void fill_info(const cifar_format *format, cifar_set *set, ddp_dataset_info *info_out)
{
    set->label_bytes = format->label_bytes;
    set->record_bytes = record_bytes(format);
    for (int i = 0; i < format->classes; i++)
        set->class_names[i] = set->header.names[i];
    *info_out = (ddp_dataset_info){.shape = {3, {CHANNELS, SIDE, SIDE}},
                                   .count = set->header.count,
                                   .classes = format->classes,
                                   .class_names = set->class_names};
}

static ddp_status open_cifar(const cifar_format *format, const ddp_data_opts *opts, ddp_split split,
                             ddp_comm *comm, ddp_dataset_info *info_out, void **self_out)
{
    cifar_files *files = NULL;
    cifar_set *set = NULL;
    ddp_status st = DDP_ALLOC(files, 1);
    if (st == DDP_OK)
        st = DDP_ALLOC(set, 1);
    if (st != DDP_OK) {
        ddp_free(files);
        return ddp_comm_agree(comm, st, "opening the data set");
    }
    files->format = format;
    files->dir = opts->data_dir;
    files->names = split == DDP_SPLIT_TRAIN ? format->train_files : format->test_files;
    st = open_copy(files, comm, &set->header, &set->copy);
    ddp_free(files);
    if (st != DDP_OK) {
        ddp_free(set);
        return st;
    }
    fill_info(format, set, info_out);
    *self_out = set;
    return DDP_OK;
}

static ddp_status cifar10_open(const ddp_data_opts *opts, ddp_split split, ddp_comm *comm,
                               ddp_dataset_info *info_out, void **self_out)
{
    return open_cifar(&cifar10_format, opts, split, comm, info_out, self_out);
}

static ddp_status cifar100_open(const ddp_data_opts *opts, ddp_split split, ddp_comm *comm,
                                ddp_dataset_info *info_out, void **self_out)
{
    return open_cifar(&cifar100_format, opts, split, comm, info_out, self_out);
}

static ddp_status cifar_image(void *self, int64_t index, ddp_image *image_out)
{
    const cifar_set *set = self;
    const uint8_t *record = set->copy.memory + index * set->record_bytes;
    *image_out = (ddp_image){.pixels = record + set->label_bytes,
                             .bytes = true,
                             .channels = CHANNELS,
                             .height = SIDE,
                             .width = SIDE,
                             .stride_c = PLANE,
                             .stride_y = SIDE,
                             .stride_x = 1,
                             .label = record[set->label_bytes - 1]};
    return DDP_OK;
}

/* Division rounds exactly, as a product with 1/255 would not. */
static void scale(const uint8_t *restrict src, float *restrict dst, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dst[i] = (float)src[i] / 255.0f;
}

static ddp_status cifar_fetch(void *self, const int64_t *indices, int64_t n, float *dst,
                              int32_t *labels)
{
    const cifar_set *set = self;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *record = set->copy.memory + indices[i] * set->record_bytes;
        scale(record + set->label_bytes, dst + i * PIXELS, PIXELS);
        labels[i] = record[set->label_bytes - 1];
    }
    return DDP_OK;
}

static void cifar_close(void *self, ddp_comm *comm)
{
    cifar_set *set = self;
    if (set == NULL)
        return;
    ddpi_node_copy_close(&set->copy, comm);
    ddp_free(set);
}

const ddp_dataset_ops *ddp_dataset_cifar10(void)
{
    static const ddp_dataset_ops ops = {"cifar10", cifar10_open, cifar_fetch, cifar_close,
                                        cifar_image};
    return &ops;
}

const ddp_dataset_ops *ddp_dataset_cifar100(void)
{
    static const ddp_dataset_ops ops = {"cifar100", cifar100_open, cifar_fetch, cifar_close,
                                        cifar_image};
    return &ops;
}
