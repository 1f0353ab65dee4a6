/* agree.c - ranks take the same verdict, or find out in what they differ.
 *
 * The usual case, all is well, costs one allreduce of a word: the maximum over ranks of a number
 * that is 0 for success and larger the lower the rank, so the lowest failing rank wins. Only then
 * its words are sent to everybody. Rank's thread only. */
#include <stdio.h>
#include <string.h>

#include "comm/comm_impl.h"
#include "ddp/fs.h"
#include "ddp/memory.h"

#define LINE_BYTES 160

typedef struct verdict {
    int32_t status;
    char host[DDPI_SIDE_HOST_BYTES];
    char message[960];
} verdict;

/* The lowest rank that is affected; -1 if none is. */
static ddp_status lowest(ddp_comm *comm, bool affected, const char *what, int *rank_out)
{
    int32_t word = affected ? comm->world - comm->rank : 0;

    DDP_TRY(ddp_comm_allreduce(comm, &word, 1, DDP_I32, DDP_REDUCE_MAX, what));
    *rank_out = word > 0 ? comm->world - word : -1;
    return DDP_OK;
}

ddp_status ddp_comm_agree(ddp_comm *comm, ddp_status mine, const char *what)
{
    verdict v = {.status = (int32_t)mine};
    int rank;

    /* What follows may replace the thread's message. */
    if (mine != DDP_OK)
        snprintf(v.message, sizeof v.message, "%s", ddp_status_message());
    memcpy(v.host, comm->host, sizeof v.host);
    DDP_TRY(lowest(comm, mine != DDP_OK, what, &rank));
    if (rank < 0)
        return DDP_OK;
    DDP_TRY(ddp_comm_broadcast(comm, rank, &v, sizeof v));
    if (rank == comm->rank)
        return ddp_status_set(mine, NULL, 0, "%s", v.message);
    return ddp_status_set((ddp_status)v.status, NULL, 0, "rank %d on %s: %s", rank, v.host,
                          v.message);
}

/* ---- fingerprints ---- */

typedef struct print {
    uint64_t bytes, hash;
} print;

static void copy_line(const char *text, char *line)
{
    size_t length = strcspn(text, "\n");

    if (text[0] == '\0')
        snprintf(line, LINE_BYTES, "the end of the text");
    else
        snprintf(line, LINE_BYTES, "\"%.*s\"",
                 (int)(length < LINE_BYTES - 3 ? length : LINE_BYTES - 3), text);
}

static void first_difference(const char *a, const char *b, char *line_a, char *line_b)
{
    for (;;) {
        size_t la = strcspn(a, "\n"), lb = strcspn(b, "\n");
        if (la != lb || memcmp(a, b, la) != 0 || a[la] == '\0' || b[lb] == '\0') {
            /* One text may end where the other goes on. */
            bool same = la == lb && memcmp(a, b, la) == 0;
            copy_line(same ? a + la + (a[la] != '\0') : a, line_a);
            copy_line(same ? b + lb + (b[lb] != '\0') : b, line_b);
            return;
        }
        a += la + 1;
        b += lb + 1;
    }
}

/* Rank 0's text goes to all; the first rank that differs says how. */
static ddp_status report(ddp_comm *comm, const char *text, const char *what, uint64_t bytes,
                         int rank)
{
    verdict v = {.status = DDP_ERR_MISMATCH};
    char line[LINE_BYTES], first_line[LINE_BYTES];
    char *first = NULL;

    ddp_status st = ddp_comm_agree(comm, DDP_ALLOC(first, (size_t)bytes + 1), what);
    if (st != DDP_OK) {
        ddp_free(first);
        return st;
    }
    if (comm->rank == 0)
        memcpy(first, text, bytes);
    st = ddp_comm_broadcast(comm, 0, first, bytes);
    if (st == DDP_OK && rank == comm->rank) {
        first_difference(text, first, line, first_line);
        snprintf(v.message, sizeof v.message, "%s differs: rank %d on %s has %s, rank 0 has %s",
                 what, rank, comm->host, line, first_line);
    }
    ddp_free(first);
    DDP_TRY(st);
    DDP_TRY(ddp_comm_broadcast(comm, rank, &v, sizeof v));
    return ddp_status_set(DDP_ERR_MISMATCH, NULL, 0, "%s", v.message);
}

ddp_status ddp_comm_fingerprint(ddp_comm *comm, const char *text, const char *what)
{
    print mine = {.bytes = strlen(text)}, first;
    int rank;

    mine.hash = ddp_hash64(text, mine.bytes);
    first = mine;
    DDP_TRY(ddp_comm_broadcast(comm, 0, &first, sizeof first));
    bool differs = mine.bytes != first.bytes || mine.hash != first.hash;
    DDP_TRY(lowest(comm, differs, what, &rank));
    return rank < 0 ? DDP_OK : report(comm, text, what, first.bytes, rank);
}
