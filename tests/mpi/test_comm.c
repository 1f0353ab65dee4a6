/* Collectives of the MPI communicator in shared memory, in windows and outside; its places, node
 * memory, verdicts and fingerprints. With arguments, as main() says, other options by hand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm_checks.h"

static const size_t lengths[] = {0, 1, 7, 1000, 100003, 400009};

static ddp_status check_lengths(ddp_comm *comm, bool window)
{
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t bytes = (lengths[i] * 8 + 64) * (size_t)ddp_comm_world(comm);
        void *memory;
        if (window)
            DDP_TRY(ddp_comm_mem_alloc(comm, bytes, &memory));
        else
            DDP_TRY(ddp_alloc_bytes(bytes, 1, &memory));
        ddp_status st = check_all(comm, memory, lengths[i]);
        for (int k = 0; k < 5 && st == DDP_OK; k++)
            st = check_many(comm, memory, lengths[i]);
        if (window)
            ddp_comm_mem_free(comm, memory);
        else
            ddp_free(memory);
        DDP_TRY(st);
    }
    return DDP_OK;
}

static ddp_status check_node_memory(ddp_comm *comm)
{
    enum { BYTES = 300000 };
    bool first = ddp_comm_node_rank(comm) == 0;
    void *memory;
    DDP_TRY(ddp_comm_node_alloc(comm, first ? BYTES : 0, &memory));
    if (first)
        memset(memory, 42, BYTES);
    DDP_TRY(ddp_comm_agree(comm, DDP_OK, "fill"));
    for (size_t i = 0; i < BYTES; i++)
        if (((uint8_t *)memory)[i] != 42)
            return DDP_FAIL(DDP_ERR_INTERNAL, "byte %zu is not the first rank's", i);
    ddp_comm_node_free(comm, memory);
    return DDP_OK;
}

static ddp_status expect(bool right, const char *what)
{
    return right ? DDP_OK : DDP_FAIL(DDP_ERR_INTERNAL, "%s", what);
}

static ddp_status check_place(ddp_comm *comm, bool shared)
{
    int rank = ddp_comm_rank(comm), world = ddp_comm_world(comm);
    DDP_TRY(expect(strcmp(ddp_comm_backend_name(comm), "mpi") == 0, "backend"));
    DDP_TRY(expect(ddp_comm_library(comm)[0] != '\0', "library"));
    DDP_TRY(expect(ddp_rank_ctx_get()->rank == rank, "rank of the context"));
    DDP_TRY(expect(ddp_comm_node_rank(comm) == (shared ? rank : 0), "node rank"));
    DDP_TRY(expect(ddp_comm_local_rank(comm) == rank, "local rank"));
    DDP_TRY(expect(ddp_comm_node_size(comm) == (shared ? world : 1), "node size"));
    DDP_TRY(expect(ddp_comm_node(comm) == (shared ? 0 : rank), "node"));
    return expect(ddp_comm_node_count(comm) == (shared ? 1 : world), "node count");
}

static ddp_status check_verdicts(ddp_comm *comm)
{
    int rank = ddp_comm_rank(comm), last = ddp_comm_world(comm) - 1;
    ddp_status mine = rank == last ? DDP_FAIL(DDP_ERR_FORMAT, "bad magic") : DDP_OK;
    ddp_status st = ddp_comm_agree(comm, mine, "open");
    DDP_TRY(expect(st == DDP_ERR_FORMAT && strstr(ddp_status_message(), "bad magic"), "verdict"));
    DDP_TRY(ddp_comm_fingerprint(comm, "a=1\nb=2\n", "settings"));
    st = ddp_comm_fingerprint(comm, rank == last ? "a=1\nb=3\n" : "a=1\nb=2\n", "settings");
    if (last == 0)
        return st;
    return expect(st == DDP_ERR_MISMATCH && strstr(ddp_status_message(), "b=3"), "fingerprint");
}

static ddp_status check_everything(ddp_comm *comm, bool shared)
{
    DDP_TRY(check_place(comm, shared));
    DDP_TRY(check_lengths(comm, true));
    DDP_TRY(check_lengths(comm, false));
    void *memory;
    DDP_TRY(ddp_alloc_bytes(8 * 1003, 1, &memory));
    ddp_status st = check_types(comm, memory, 1003);
    ddp_free(memory);
    DDP_TRY(st);
    DDP_TRY(check_node_memory(comm));
    return check_verdicts(comm);
}

/* test_comm [ALGORITHM [noshm]]: the algorithm as its number in ddp_allreduce_algo. */
int main(int argc, char **argv)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    ddp_comm *comm;
    opts.timeout_ms = 30000;
    if (argc > 1)
        opts.allreduce = (ddp_allreduce_algo)strtol(argv[1], NULL, 10);
    opts.shared_memory = argc <= 2;
    ddp_status st = ddp_comm_mpi_open(&opts, &argc, &argv, &comm);
    if (st == DDP_OK) {
        st = check_everything(comm, opts.shared_memory);
        if (st != DDP_OK)
            ddp_fatal("%s", ddp_status_message());
        ddp_comm_close(comm);
        return 0;
    }
    fprintf(stderr, "open: %s: %s\n", ddp_status_name(st), ddp_status_message());
    return 1;
}
