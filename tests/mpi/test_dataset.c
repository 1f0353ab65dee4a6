/* test_dataset.c - real processes open one IDX data set: every rank reads the right samples from
 * the node's copy, and a damaged file gives all of them the same verdict. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ddp/dataset.h"

enum { COUNT = 700, SIDE = 28, PIXELS = SIDE * SIDE };

#define REQUIRE(truth)                                                                             \
    do {                                                                                           \
        if (!(truth)) {                                                                            \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #truth, ddp_status_message()); \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static unsigned char pixel(int64_t sample, int64_t p)
{
    return (unsigned char)(sample * 37 + p * 11);
}

static int write_file(const char *dir, const char *name, const unsigned char *data, size_t bytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL)
        return 1;
    size_t wrote = fwrite(data, 1, bytes, file);
    return fclose(file) != 0 || wrote != bytes;
}

/* worst: the largest label */
static int write_files(const char *dir, unsigned char worst)
{
    static unsigned char images[16 + COUNT * PIXELS] = {
        0, 0, 8, 3, 0, 0, COUNT / 256, COUNT % 256, 0, 0, 0, SIDE, 0, 0, 0, SIDE};
    static unsigned char labels[8 + COUNT] = {0, 0, 8, 1, 0, 0, COUNT / 256, COUNT % 256};
    for (int64_t i = 0; i < COUNT; i++) {
        labels[8 + i] = (unsigned char)(i % 10);
        for (int64_t p = 0; p < PIXELS; p++)
            images[16 + i * PIXELS + p] = pixel(i, p);
    }
    labels[8 + COUNT - 1] = worst;
    return write_file(dir, "train-images-idx3-ubyte", images, sizeof images) ||
           write_file(dir, "train-labels-idx1-ubyte", labels, sizeof labels);
}

static void remove_files(const char *dir)
{
    char path[256];
    snprintf(path, sizeof path, "%s/train-images-idx3-ubyte", dir);
    (void)unlink(path);
    snprintf(path, sizeof path, "%s/train-labels-idx1-ubyte", dir);
    (void)unlink(path);
    (void)rmdir(dir);
}

static int check_samples(ddp_dataset *dataset)
{
    static float pixels[PIXELS];
    for (int64_t i = 0; i < COUNT; i++) {
        int32_t label;
        REQUIRE(ddp_dataset_fetch(dataset, &i, 1, pixels, &label) == DDP_OK);
        REQUIRE(label == i % 10);
        for (int64_t p = 0; p < PIXELS; p++)
            REQUIRE(pixels[p] == (float)(pixel(i, p) / 255.0));
    }
    return 0;
}

static int check_good(ddp_comm *comm, const ddp_data_opts *opts)
{
    for (int again = 0; again < 2; again++) {
        ddp_dataset *dataset = NULL;
        REQUIRE(ddp_dataset_open(ddp_dataset_mnist(), opts, DDP_SPLIT_TRAIN, comm, &dataset) ==
                DDP_OK);
        REQUIRE(ddp_dataset_get_info(dataset)->count == COUNT);
        REQUIRE(check_samples(dataset) == 0);
        REQUIRE(ddp_comm_barrier(comm) == DDP_OK);
        ddp_dataset_close(dataset);
    }
    return 0;
}

static int check_bad(ddp_comm *comm, const ddp_data_opts *opts, ddp_split split, ddp_status want,
                     const char *text)
{
    ddp_dataset *dataset = NULL;
    REQUIRE(ddp_dataset_open(ddp_dataset_mnist(), opts, split, comm, &dataset) == want);
    REQUIRE(dataset == NULL);
    REQUIRE(strstr(ddp_status_message(), text) != NULL);
    return 0;
}

/* A limit on the size of files is one on shared memory too: as on a machine that has too little. */
static int check_small_shared_memory(ddp_comm *comm, const ddp_data_opts *opts)
{
    struct rlimit before, small;
    void *memory = NULL;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    small = before;
    small.rlim_cur = 100000;
    (void)signal(SIGXFSZ, SIG_IGN);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    if (ddp_comm_node_count(comm) < ddp_comm_world(comm))
        REQUIRE(ddp_comm_node_alloc(comm, COUNT * PIXELS, &memory) == DDP_ERR_NOMEM);
    int bad = check_good(comm, opts);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
    return bad;
}

static int run(ddp_comm *comm)
{
    char dir[64] = "/tmp/ddp_test_mpi_XXXXXX";
    int rank = ddp_comm_rank(comm), bad = 0;
    if (rank == 0)
        REQUIRE(mkdtemp(dir) != NULL && write_files(dir, (COUNT - 1) % 10) == 0);
    REQUIRE(ddp_comm_broadcast(comm, 0, dir, sizeof dir) == DDP_OK);
    ddp_data_opts opts = {.dataset = "mnist", .data_dir = dir};
    bad |= check_good(comm, &opts);
    bad |= check_small_shared_memory(comm, &opts);
    bad |= check_bad(comm, &opts, DDP_SPLIT_TEST, DDP_ERR_IO, "no t10k-images-idx3-ubyte");
    if (rank == 0)
        REQUIRE(write_files(dir, 10) == 0);
    REQUIRE(ddp_comm_barrier(comm) == DDP_OK);
    bad |= check_bad(comm, &opts, DDP_SPLIT_TRAIN, DDP_ERR_FORMAT, "label 699 is 10");
    REQUIRE(ddp_comm_barrier(comm) == DDP_OK);
    if (rank == 0)
        remove_files(dir);
    return bad;
}

int main(int argc, char **argv)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    ddp_comm *comm = NULL;
    if (ddp_comm_mpi_open(&opts, &argc, &argv, &comm) != DDP_OK) {
        fprintf(stderr, "test_dataset: %s\n", ddp_status_message());
        return 1;
    }
    int bad = run(comm);
    if (bad)
        ddp_comm_fail(comm, "test_dataset failed");
    ddp_comm_close(comm);
    return bad;
}
