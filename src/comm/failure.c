/* failure.c - the end of a communicator: who finds it, who says it, and what every later call gets.
 *
 * The state goes HEALTHY -> FAILING -> FAILED, once. The thread that makes the first step owns the
 * rest: it claims the cause on the side channel (or takes the one that another rank has recorded),
 * writes it into the communicator, and, with exit_on_failure, ends the process. All others only
 * read it. Since FAILING comes before the claim, this rank's own watchdog cannot mistake the claim
 * for another rank's and leave before the cause is printed.
 *
 * Between nodes there is no claim: ranks tell each other, by TCP (net.h) and by messages, and who
 * has told waits a little for what
 * it is told; of several causes, that of the lowest rank is printed. */
#include <stdio.h>
#include <string.h>

#include "comm/comm_impl.h"
#include "ddp/thread.h"

enum { HEALTHY, FAILING, FAILED };

#define NS_PER_MS ((int64_t)1000000)
/* For another rank's text, or status, that is being written just now. */
#define FOREIGN_CAUSE_NS (200 * NS_PER_MS)
#define LOOK_NS          (NS_PER_MS / 5)
/* For the rank on another node that is to print the cause. */
#define SAY_FIRST_NS (400 * NS_PER_MS)
/* More than any thread takes to end the process. */
#define PARK_NS (2000 * NS_PER_MS)

bool ddpi_comm_failed(const ddp_comm *comm)
{
    return __atomic_load_n(&comm->fail_state, __ATOMIC_ACQUIRE) == FAILED;
}

ddp_status ddpi_comm_cause(const ddp_comm *comm)
{
    return ddp_status_set(comm->cause_status, NULL, 0, "%s", comm->cause);
}

static bool own_failure(ddp_comm *comm)
{
    int healthy = HEALTHY;

    return __atomic_compare_exchange_n(&comm->fail_state, &healthy, FAILING, false,
                                       __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* Ranks of other nodes hear of it beside the messages, which may be stuck. */
static void tell_nodes(ddp_comm *comm, ddp_status status, const char *cause)
{
    if (comm->net != NULL)
        ddpi_net_tell(comm->net, comm->rank, status, cause);
}

/* Makes the failure known in this process, and to whom only messages reach. */
static void announce(ddp_comm *comm, ddp_status status, const char *cause, bool ours)
{
    __atomic_store_n(&comm->heard, !ours, __ATOMIC_RELEASE);
    comm->cause_status = status;
    snprintf(comm->cause, sizeof comm->cause, "%s", cause);
    __atomic_store_n(&comm->fail_state, FAILED, __ATOMIC_RELEASE);
    ddpi_engine_abort(comm->engine);
}

/* What is said of the cause on another rank: lateness is everybody's, other causes are a peer's. */
static ddp_status seen_from_here(ddp_status first)
{
    return first == DDP_ERR_TIMEOUT || first == DDP_ERR_MISMATCH ? first : DDP_ERR_PEER;
}

static void record_status(ddp_comm *comm, ddp_status status)
{
    if (comm->board != NULL)
        __atomic_store_n(&comm->board->first_status, (int)status, __ATOMIC_RELEASE);
}

/* The status that goes with a cause which another rank has recorded. */
static ddp_status foreign_status(const ddp_comm *comm)
{
    int64_t until_ns = ddp_now_ns() + FOREIGN_CAUSE_NS;
    int first;

    while ((first = __atomic_load_n(&comm->board->first_status, __ATOMIC_ACQUIRE)) == DDP_OK &&
           ddp_now_ns() < until_ns)
        ddp_sleep_ns(LOOK_NS);
    return seen_from_here((ddp_status)first);
}

/* Claims the cause; true if it is ours to print. Otherwise text and status become the first one's.
 */
static bool claim(ddp_comm *comm, ddp_status *status, char *text)
{
    int64_t until_ns = ddp_now_ns() + FOREIGN_CAUSE_NS;

    if (comm->side == NULL || ddpi_side_claim(comm->side, text)) {
        record_status(comm, *status);
        return true;
    }
    while (!ddpi_side_cause(comm->side, text, NULL) && ddp_now_ns() < until_ns)
        ddp_sleep_ns(LOOK_NS);
    *status = foreign_status(comm);
    return false;
}

static void leave_if_asked(const ddp_comm *comm, bool first)
{
    if (!comm->opts.exit_on_failure || ddp_is_leaving())
        return;
    if (first && !__atomic_load_n(&comm->heard, __ATOMIC_ACQUIRE))
        ddp_fatal("%s", comm->cause);
    /* A launcher ends the whole job when it sees one rank leave. */
    if (comm->node_count > 1)
        ddp_sleep_ns(SAY_FIRST_NS);
    ddp_fatal_quiet();
}

static void fail(ddp_comm *comm, ddp_status status, const char *cause)
{
    char text[DDPI_CAUSE_BYTES];

    if (!own_failure(comm))
        return;
    snprintf(text, sizeof text, "%s", cause);
    bool first = claim(comm, &status, text);
    tell_nodes(comm, status, text);
    announce(comm, status, text, first);
    leave_if_asked(comm, first);
}

ddp_status ddpi_comm_raise(ddp_comm *comm, ddp_status status)
{
    char text[DDPI_CAUSE_BYTES];

    snprintf(text, sizeof text, "%s", ddp_status_message());
    fail(comm, status, text);
    /* Another thread of this rank may be about to say it. */
    while (!ddpi_comm_failed(comm))
        ddp_sleep_ns(LOOK_NS);
    return ddpi_comm_cause(comm);
}

void ddpi_comm_hear(ddp_comm *comm, int from, ddp_status status, const char *cause)
{
    if (!own_failure(comm)) {
        /* Several found the same at once: the lowest rank of them prints it. */
        if (from < comm->rank)
            __atomic_store_n(&comm->heard, true, __ATOMIC_RELEASE);
        return;
    }
    /* So that this node's ranks agree on it; it has been printed where it arose. */
    if (comm->side != NULL)
        (void)ddpi_side_claim(comm->side, cause);
    status = seen_from_here(status);
    record_status(comm, status);
    announce(comm, status, cause, false);
    leave_if_asked(comm, false);
}

void ddpi_comm_park(const ddp_comm *comm)
{
    if (!comm->opts.exit_on_failure || !ddpi_comm_failed(comm))
        return;
    ddp_sleep_ns(PARK_NS);
    ddp_fatal_quiet();
}

void ddpi_comm_on_watchdog(void *arg, ddp_status status, const char *cause, bool first)
{
    ddp_comm *comm = arg;

    if (!own_failure(comm))
        return;
    if (first)
        record_status(comm, status);
    else
        status = foreign_status(comm);
    tell_nodes(comm, status, cause);
    announce(comm, status, cause, first);
    leave_if_asked(comm, first);
}

void ddpi_comm_on_net(void *arg, const ddpi_net_cause *cause)
{
    ddpi_comm_hear(arg, cause->from, cause->status, cause->text);
}

void ddpi_comm_on_fatal(void *arg, const char *cause)
{
    ddp_comm *comm = arg;
    void (*fn)(void *, const char *) = __atomic_load_n(&comm->on_failure, __ATOMIC_ACQUIRE);

    if (fn != NULL)
        fn(comm->on_failure_arg, cause);
    if (cause[0] == '\0' || !own_failure(comm))
        return;
    /* Other ranks get it as a peer's failure. It has been printed already. */
    if (comm->side == NULL || ddpi_side_claim(comm->side, cause))
        record_status(comm, DDP_ERR_PEER);
    tell_nodes(comm, DDP_ERR_PEER, cause);
    announce(comm, DDP_ERR_COMM, cause, true);
}

void ddp_comm_on_failure(ddp_comm *comm, void (*fn)(void *arg, const char *cause), void *arg)
{
    comm->on_failure_arg = arg;
    __atomic_store_n(&comm->on_failure, fn, __ATOMIC_RELEASE);
}

void ddp_comm_fail(ddp_comm *comm, const char *cause)
{
    fail(comm, DDP_ERR_COMM, cause);
}
