/* mpi_talk.c - what ranks of several nodes tell each other beside their works: the cause of a
 * failure, and how far they are.
 *
 * Communication thread only, but for create and destroy. A word is one small message under a tag of
 * its own. Words wait in an outbox until MPI has sent them; if it is full, a word is dropped, since
 * whoever needs an answer has a deadline anyway. A question is answered at once by every engine,
 * busy or not; a process that is stopped answers nothing, and is named for that. */
#include <stdio.h>
#include <string.h>

#include "comm/mpi/mpi_impl.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

#define TAG_WORD      (DDPI_TAG_COUNT + 1)
#define NS_PER_MS     ((int64_t)1000000)
#define SEND_LIMIT_NS (200 * NS_PER_MS)
/* For the same cause, found by another rank at the same time. */
#define HEAR_NS         (80 * NS_PER_MS)
#define RECV_LIMIT_NS   (100 * NS_PER_MS)
#define LOOK_NS         (NS_PER_MS / 20)
#define WORDS_PER_RANK  3
#define WORDS_PER_ROUND 64

typedef enum word_kind { WORD_CAUSE, WORD_QUESTION, WORD_ANSWER } word_kind;

typedef struct word {
    int32_t kind;
    int32_t status;   /* of a cause */
    uint64_t entered; /* works, by the sender */
    int64_t step;
    char phase[DDPI_SIDE_TEXT_BYTES];
    char cause[DDPI_CAUSE_BYTES];
} word;

typedef struct letter {
    word word;
    MPI_Request request; /* MPI_REQUEST_NULL: free */
} letter;

typedef struct known {
    char host[DDPI_SIDE_HOST_BYTES];
    uint64_t entered;
    int64_t step;
    char phase[DDPI_SIDE_TEXT_BYTES];
} known;

struct ddpi_mpi_talk {
    int letter_count;
    letter *outbox;
    known *ranks;
    word heard; /* MPI may still write here after a receive that was given up */
};

ddp_status ddpi_mpi_talk_create(ddpi_mpi_comm *comm, ddpi_mpi_talk **talk_out)
{
    size_t world = (size_t)comm->base.world;
    ddpi_mpi_talk *talk;
    char *hosts = NULL;
    ddp_status st;

    DDP_TRY(DDP_ALLOC(talk, 1));
    talk->letter_count = (int)world * WORDS_PER_RANK;
    DDP_TRY_GOTO(st, DDP_ALLOC(talk->outbox, (size_t)talk->letter_count), err);
    for (int i = 0; i < talk->letter_count; i++)
        talk->outbox[i].request = MPI_REQUEST_NULL;
    DDP_TRY_GOTO(st, DDP_ALLOC(talk->ranks, world), err);
    DDP_TRY_GOTO(st, DDP_ALLOC(hosts, world * DDPI_SIDE_HOST_BYTES), err);
    int code = MPI_Allgather(comm->base.host, DDPI_SIDE_HOST_BYTES, MPI_BYTE, hosts,
                             DDPI_SIDE_HOST_BYTES, MPI_BYTE, MPI_COMM_WORLD);
    for (size_t r = 0; r < world; r++)
        memcpy(talk->ranks[r].host, hosts + r * DDPI_SIDE_HOST_BYTES, DDPI_SIDE_HOST_BYTES);
    ddp_free(hosts);
    if (code == MPI_SUCCESS) {
        *talk_out = talk;
        return DDP_OK;
    }
    st = ddpi_mpi_error(code, "MPI_Allgather");
err:
    ddpi_mpi_talk_destroy(talk);
    return st;
}

void ddpi_mpi_talk_destroy(ddpi_mpi_talk *talk)
{
    if (talk == NULL)
        return;
    ddp_free(talk->ranks);
    ddp_free(talk->outbox);
    ddp_free(talk);
}

/* ---- saying ---- */

static bool is_sent(letter *l)
{
    int done = 1;

    if (l->request != MPI_REQUEST_NULL &&
        MPI_Test(&l->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return false;
    return done != 0;
}

static void say(ddpi_mpi_talk *talk, int to, const word *w)
{
    for (int i = 0; i < talk->letter_count; i++) {
        letter *l = &talk->outbox[i];
        if (!is_sent(l))
            continue;
        l->word = *w;
        if (MPI_Isend(&l->word, (int)sizeof l->word, MPI_BYTE, to, TAG_WORD, MPI_COMM_WORLD,
                      &l->request) != MPI_SUCCESS)
            l->request = MPI_REQUEST_NULL;
        return;
    }
}

static void say_to_all(ddpi_mpi_comm *comm, const word *w)
{
    for (int i = 1; i < comm->base.world; i++)
        say(comm->talk, (comm->base.rank + i) % comm->base.world, w);
}

/* A word with what this rank is doing. */
static word own_state(const ddpi_mpi_comm *comm, word_kind kind)
{
    word w = {.kind = (int32_t)kind};
    ddpi_side_view view;

    ddpi_side_view_get(comm->base.side, ddpi_side_index(comm->base.side), &view);
    w.entered = view.entered;
    w.step = view.step;
    memcpy(w.phase, view.phase, sizeof w.phase);
    return w;
}

void ddpi_mpi_talk_cause(void *self, ddp_status status, const char *cause)
{
    ddpi_mpi_comm *comm = self;
    word w = {.kind = WORD_CAUSE, .status = (int32_t)status};
    int64_t until_ns = ddp_now_ns() + SEND_LIMIT_NS;
    int64_t hear_ns = ddp_now_ns() + HEAR_NS;
    bool sent = false;

    snprintf(w.cause, sizeof w.cause, "%s", cause);
    say_to_all(comm, &w);
    while (ddp_now_ns() < (sent ? hear_ns : until_ns)) {
        sent = true;
        for (int i = 0; i < comm->talk->letter_count; i++)
            sent = is_sent(&comm->talk->outbox[i]) && sent;
        ddpi_mpi_talk_listen(self);
        ddp_sleep_ns(LOOK_NS);
    }
}

void ddpi_mpi_talk_ask(void *self)
{
    ddpi_mpi_comm *comm = self;
    word w = own_state(comm, WORD_QUESTION);

    say_to_all(comm, &w);
}

/* ---- hearing ---- */

/* Takes a word that has been announced. False if it does not come, which ends the round only. */
static bool take(int from, word *w)
{
    int64_t until_ns = ddp_now_ns() + RECV_LIMIT_NS;
    MPI_Request request;
    int done = 0;

    if (MPI_Irecv(w, (int)sizeof *w, MPI_BYTE, from, TAG_WORD, MPI_COMM_WORLD, &request) !=
        MPI_SUCCESS)
        return false;
    while (!done && ddp_now_ns() < until_ns) {
        if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return false;
    }
    if (done)
        return true;
    (void)MPI_Cancel(&request);
    (void)MPI_Request_free(&request);
    return false;
}

static void hear(ddpi_mpi_comm *comm, int from, word *w)
{
    known *k = &comm->talk->ranks[from];

    w->cause[sizeof w->cause - 1] = '\0';
    w->phase[sizeof w->phase - 1] = '\0';
    if (w->kind == WORD_CAUSE) {
        ddpi_comm_hear(&comm->base, from, (ddp_status)w->status, w->cause);
        return;
    }
    k->entered = w->entered;
    k->step = w->step;
    memcpy(k->phase, w->phase, sizeof k->phase);
    if (w->kind == WORD_QUESTION) {
        word answer = own_state(comm, WORD_ANSWER);
        say(comm->talk, from, &answer);
    }
}

void ddpi_mpi_talk_listen(void *self)
{
    ddpi_mpi_comm *comm = self;
    word *w = &comm->talk->heard;

    for (int i = 0; i < WORDS_PER_ROUND; i++) {
        MPI_Status status;
        int there = 0;
        if (MPI_Iprobe(MPI_ANY_SOURCE, TAG_WORD, MPI_COMM_WORLD, &there, &status) != MPI_SUCCESS ||
            !there || !take(status.MPI_SOURCE, w))
            return;
        hear(comm, status.MPI_SOURCE, w);
    }
}

void ddpi_mpi_talk_missing(void *self, uint64_t seq, ddpi_missing *missing_out)
{
    const ddpi_mpi_comm *comm = self;
    ddpi_missing *m = missing_out;
    size_t used = 0;

    for (int r = 0; r < comm->base.world && used < sizeof m->names; r++) {
        const known *k = &comm->talk->ranks[r];
        if (r == comm->base.rank || k->entered > seq)
            continue;
        if (used == 0 && k->phase[0] != '\0')
            snprintf(m->seen, sizeof m->seen, "; last seen at step %lld in %s", (long long)k->step,
                     k->phase);
        int wrote = snprintf(m->names + used, sizeof m->names - used, "%srank %d on %s",
                             used > 0 ? ", " : "", r, k->host);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}
