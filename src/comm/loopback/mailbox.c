/* mailbox.c - messages between the threads of a loopback world, with injected faults.
 *
 * A send copies its message into the receiver's box, so it is done at once and a sender that fails
 * leaves nothing behind that points to its memory. The copy's buffer comes from the box's list of
 * used ones: in a steady state nothing is allocated. Delays are a hash of (seed, sender, number of
 * the message), so a test can be repeated. */
#include "comm/loopback/mailbox.h"

#include <string.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

#define NS_PER_US     1000
#define IDLE_LIMIT_NS 1000000
/* While a message is under way but not yet visible, there is no arrival to wait for. */
#define IDLE_DELAY_NS 100000

typedef struct message {
    int from, tag;
    int64_t visible_ns;
    size_t bytes, room;
    char *data;
    struct message *next;
} message;

typedef struct box {
    ddp_monitor monitor; /* guards all below */
    message *first, **end;
    message *used;
    uint64_t arrivals;
    int64_t *visible_ns; /* latest, by sender */
} box;

struct ddpi_post {
    int world;
    ddp_loopback_faults faults;
    box *boxes;
};

static void free_messages(message *m)
{
    while (m != NULL) {
        message *next = m->next;
        ddp_free(m->data);
        ddp_free(m);
        m = next;
    }
}

static void box_destroy(box *b)
{
    free_messages(b->first);
    free_messages(b->used);
    ddp_free(b->visible_ns);
    ddp_monitor_destroy(&b->monitor);
}

static ddp_status box_init(box *b, int world)
{
    DDP_TRY(DDP_ALLOC(b->visible_ns, (size_t)world));
    ddp_status st = ddp_monitor_init(&b->monitor);
    if (st != DDP_OK)
        ddp_free(b->visible_ns);
    b->end = &b->first;
    return st;
}

ddp_status ddpi_post_create(int world, const ddp_loopback_faults *faults, ddpi_post **post_out)
{
    ddpi_post *post;
    ddp_status st;

    DDP_TRY(DDP_ALLOC(post, 1));
    post->faults = *faults;
    DDP_TRY_GOTO(st, DDP_ALLOC(post->boxes, (size_t)world), err);
    for (; post->world < world; post->world++)
        DDP_TRY_GOTO(st, box_init(&post->boxes[post->world], world), err);
    *post_out = post;
    return DDP_OK;
err:
    ddpi_post_destroy(post);
    return st;
}

void ddpi_post_destroy(ddpi_post *post)
{
    if (post == NULL)
        return;
    for (int i = 0; i < post->world; i++)
        box_destroy(&post->boxes[i]);
    ddp_free(post->boxes);
    ddp_free(post);
}

/* ---- sending ---- */

/* A message of the box with room for so many bytes: a used one, or a new one. */
static ddp_status new_message(box *b, size_t bytes, message **message_out)
{
    message *m;

    for (message **at = &b->used; *at != NULL; at = &(*at)->next) {
        if ((*at)->room < bytes)
            continue;
        *message_out = *at;
        *at = (*at)->next;
        return DDP_OK;
    }
    DDP_TRY(DDP_ALLOC(m, 1));
    ddp_status st = DDP_ALLOC(m->data, bytes);
    if (st != DDP_OK) {
        ddp_free(m);
        return st;
    }
    m->room = bytes;
    *message_out = m;
    return DDP_OK;
}

static int64_t delay_ns(const ddp_loopback_faults *faults, int from, uint64_t number)
{
    uint64_t key[3] = {faults->seed, (uint64_t)from, number};

    if (faults->max_delay_us <= 0)
        return 0;
    return (int64_t)(ddp_hash64(key, sizeof key) % ((uint64_t)faults->max_delay_us * NS_PER_US));
}

static ddp_status send_start(void *self, ddpi_request *request)
{
    ddpi_post_rank *own = self;
    const ddp_loopback_faults *faults = &own->post->faults;
    box *b = &own->post->boxes[request->peer];
    uint64_t number = own->sent++;
    message *m;

    if (own->rank == faults->lose_rank && number >= faults->lose_after)
        return DDP_OK;
    ddp_monitor_lock(&b->monitor);
    ddp_status st = new_message(b, request->bytes, &m);
    if (st == DDP_OK) {
        m->from = own->rank;
        m->tag = request->tag;
        m->bytes = request->bytes;
        m->next = NULL;
        m->visible_ns = ddp_now_ns() + delay_ns(faults, own->rank, number);
        int64_t *latest = &b->visible_ns[own->rank];
        if (!faults->reorder && m->visible_ns < *latest)
            m->visible_ns = *latest;
        *latest = m->visible_ns;
        if (request->bytes > 0)
            memcpy(m->data, request->buf, request->bytes);
        *b->end = m;
        b->end = &m->next;
        b->arrivals++;
        ddp_monitor_wake_all(&b->monitor);
    }
    ddp_monitor_unlock(&b->monitor);
    return st;
}

/* ---- receiving ---- */

static ddp_status recv_start(void *self, ddpi_request *request)
{
    (void)self;
    (void)request;
    return DDP_OK;
}

/* Takes the oldest message of that sender and tag out of the box, if it is visible by now. */
static message *take(box *b, int from, int tag)
{
    for (message **at = &b->first; *at != NULL; at = &(*at)->next) {
        message *m = *at;
        if (m->from != from || m->tag != tag)
            continue;
        if (m->visible_ns > ddp_now_ns())
            return NULL;
        *at = m->next;
        if (b->end == &m->next)
            b->end = at;
        return m;
    }
    return NULL;
}

static ddp_status test(void *self, ddpi_request *request, bool *done_out)
{
    ddpi_post_rank *own = self;
    box *b = &own->post->boxes[own->rank];
    ddp_status st = DDP_OK;

    *done_out = !request->receives;
    if (!request->receives)
        return DDP_OK;
    ddp_monitor_lock(&b->monitor);
    own->seen = b->arrivals;
    message *m = take(b, request->peer, request->tag);
    if (m != NULL) {
        if (m->bytes != request->bytes)
            st = DDP_FAIL(DDP_ERR_MISMATCH, "rank %d has sent %zu bytes, expected %zu", m->from,
                          m->bytes, request->bytes);
        else if (m->bytes > 0)
            memcpy(request->buf, m->data, m->bytes);
        m->next = b->used;
        b->used = m;
        *done_out = true;
    }
    ddp_monitor_unlock(&b->monitor);
    return st;
}

static void idle(void *self, unsigned round, bool aside)
{
    ddpi_post_rank *own = self;
    box *b = &own->post->boxes[own->rank];

    (void)round;
    (void)aside;
    ddp_monitor_lock(&b->monitor);
    int64_t limit_ns = b->first != NULL ? IDLE_DELAY_NS : IDLE_LIMIT_NS;
    if (b->arrivals == own->seen)
        (void)ddp_monitor_wait(&b->monitor, ddp_now_ns() + limit_ns);
    ddp_monitor_unlock(&b->monitor);
}

static void wake(void *self)
{
    ddpi_post_rank *own = self;
    box *b = &own->post->boxes[own->rank];

    ddp_monitor_lock(&b->monitor);
    ddp_monitor_wake_all(&b->monitor);
    ddp_monitor_unlock(&b->monitor);
}

const ddpi_transport ddpi_loopback_transport = {
    .send_start = send_start,
    .recv_start = recv_start,
    .test = test,
    .eager_bytes = 61440, /* as MPI's, so that ranks of one process cut alike */
    .idle = idle,
    .wake = wake,
};
