/* net.c - the star of the side channel between nodes.
 *
 * Each connection has one frame coming in and one going out, and room for a cause that waits behind
 * the latter; a record for which there is no room is said at a later turn. The lock guards the
 * connections' outgoing halves, which a thread that fails uses beside the watchdog's; under it
 * nothing blocks. Views, and everything that comes in, are the watchdog's alone.
 *
 * The kernel closes a dead process's connections, so that its end is seen here at once. Where a
 * host or a cable is lost nothing is closed, and only silence tells: it goes into the messages of
 * works that are late. */
#include "comm/net.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "comm/net_socket.h"
#include "ddp/log.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

#define NS_PER_MS  ((int64_t)1000000)
#define GREET_NS   (10000 * NS_PER_MS) /* for the answer to the token */
#define CONNECT_NS (500 * NS_PER_MS)   /* for one of several addresses */
#define GIVE_UP_NS (30000 * NS_PER_MS) /* for all of them, again and again */
#define PROOF_NS   (2000 * NS_PER_MS)  /* for a stranger to show the token */
/* Between two records of a rank that is busy: rank 0 gets about as many from few nodes as from
 * many. */
#define RECORD_NS(nodes) (50 * NS_PER_MS + (nodes)*NS_PER_MS / 4)
#define BEAT_NS          (1000 * NS_PER_MS) /* and of one that is not */
#define STRANGERS        32                 /* connections that have not shown the token yet */
#define FRAMES_PER_TURN  256
#define SPARE_FILES      256

typedef enum frame_kind {
    FRAME_HELLO = 0x44445031,
    FRAME_WELCOME,
    FRAME_RECORD,
    FRAME_CAUSE
} frame_kind;

typedef struct frame {
    uint32_t kind;
    int32_t node, from, status;
    union {
        uint8_t token[DDPI_NET_TOKEN_BYTES];
        ddpi_side_view view;
        char cause[DDPI_SIDE_CAUSE_BYTES];
    } u;
} frame;

typedef struct peer {
    int fd;       /* -1: free */
    bool greeted; /* elsewhere than at the hub: connected, and the token is shown */
    bool proven;  /* both have shown their tokens */
    int node;     /* at the other end */
    int64_t opened_ns;
    frame in;
    size_t in_bytes;
    frame out, cause;
    size_t out_left; /* bytes of `out` still to be sent */
    bool has_cause;
} peer;

/* What was last sent of a rank of this node. */
typedef struct said {
    ddpi_side_view view;
    int64_t at_ns;
} said;

/* What was last heard of a rank. */
typedef struct known {
    ddpi_side_view view;
    int node;
    int64_t heard_ns;
} known;

struct ddpi_net {
    bool hub;
    int node, node_count;
    ddpi_net_address address;
    const ddpi_side *side;
    int listener;
    peer *peers;
    int peer_count;
    said *said; /* [ranks of this node] */
    ddp_monitor monitor;
    /* The hub: of all ranks; elsewhere one entry, rank 0's. */
    known *ranks;
    int rank_count;
    /* Elsewhere: which address is tried, since when. */
    int tried;
    int64_t began_ns;
    bool connected, given_up;
    bool has_lost;
    ddpi_side_view lost;
};

/* ---- life ---- */

static void peer_close(peer *p)
{
    if (p->fd >= 0)
        close(p->fd);
    *p = (peer){.fd = -1};
}

static void net_free(ddpi_net *net)
{
    for (int i = 0; net->peers != NULL && i < net->peer_count; i++)
        peer_close(&net->peers[i]);
    if (net->listener >= 0)
        close(net->listener);
    ddp_free(net->peers);
    ddp_free(net->said);
    ddp_free(net->ranks);
    ddp_monitor_destroy(&net->monitor);
    ddp_free(net);
}

static ddp_status net_new(int peer_count, int rank_count, ddpi_net **net_out)
{
    ddpi_net *net;
    ddp_status st;

    DDP_TRY(DDP_ALLOC(net, 1));
    net->listener = -1;
    net->rank_count = rank_count;
    st = ddp_monitor_init(&net->monitor);
    if (st != DDP_OK) {
        ddp_free(net);
        return st;
    }
    DDP_TRY_GOTO(st, DDP_ALLOC(net->peers, (size_t)peer_count), err);
    net->peer_count = peer_count;
    for (int i = 0; i < peer_count; i++)
        net->peers[i].fd = -1;
    DDP_TRY_GOTO(st, DDP_ALLOC(net->ranks, (size_t)rank_count), err);
    *net_out = net;
    return DDP_OK;
err:
    net_free(net);
    return st;
}

/* A socket for each node may be more than the process may open by default. */
static void allow_files(int count)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= (rlim_t)count)
        return;
    limit.rlim_cur = limit.rlim_max < (rlim_t)count ? limit.rlim_max : (rlim_t)count;
    (void)!setrlimit(RLIMIT_NOFILE, &limit);
}

ddp_status ddpi_net_listen(int node_count, int world, ddpi_net_address *address_out,
                           ddpi_net **net_out)
{
    ddpi_net_address address = {.node_count = node_count};
    ddpi_net *net;
    ddp_status st;

    DDP_TRY(net_new(node_count + STRANGERS, world, &net));
    net->hub = true;
    net->node_count = node_count;
    allow_files(node_count + SPARE_FILES);
    DDP_TRY_GOTO(st, ddpi_socket_listen(node_count, &address, &net->listener), err);
    if (getrandom(address.hello, sizeof address.hello, 0) != sizeof address.hello ||
        getrandom(address.welcome, sizeof address.welcome, 0) != sizeof address.welcome) {
        st = DDP_FAIL(DDP_ERR_IO, "draw a token: %m");
        goto err;
    }
    net->address = address;
    *address_out = address;
    *net_out = net;
    return DDP_OK;
err:
    net_free(net);
    return st;
}

ddp_status ddpi_net_join(const ddpi_net_address *address, int node, ddpi_net **net_out)
{
    ddpi_net *net;

    if (address->port <= 0 || address->count < 1 || address->count > DDPI_NET_ADDRESSES)
        return DDP_FAIL(DDP_ERR_COMM, "rank 0 has no address");
    DDP_TRY(net_new(1, 1, &net));
    net->node = node;
    net->node_count = address->node_count;
    net->address = *address;
    net->tried = -1;
    *net_out = net;
    return DDP_OK;
}

ddp_status ddpi_net_attach(ddpi_net *net, const ddpi_side *side)
{
    net->side = side;
    net->began_ns = ddp_now_ns();
    return DDP_ALLOC(net->said, (size_t)ddpi_side_count(side));
}

/* ---- saying; under the lock ---- */

/* False: the connection has ended. */
static bool flush(peer *p)
{
    while (p->out_left > 0 || p->has_cause) {
        if (p->out_left == 0) {
            p->out = p->cause;
            p->out_left = sizeof p->out;
            p->has_cause = false;
        }
        const char *at = (const char *)&p->out + sizeof p->out - p->out_left;
        int64_t sent = ddpi_socket_send(p->fd, at, p->out_left);
        if (sent <= 0)
            return sent == 0;
        p->out_left -= (size_t)sent;
    }
    return true;
}

/* True if the frame is on its way; false for want of room, or of a connection. What has ended is
 * found by whoever reads. */
static bool say(peer *p, const frame *f)
{
    if (p->fd < 0 || !flush(p) || p->out_left > 0)
        return false;
    p->out = *f;
    p->out_left = sizeof p->out;
    return flush(p);
}

static void say_cause(peer *p, const frame *f)
{
    if (p->fd < 0 || !p->proven)
        return;
    p->cause = *f;
    p->has_cause = true;
    (void)flush(p);
}

void ddpi_net_tell(ddpi_net *net, int from, ddp_status status, const char *cause)
{
    frame f = {.kind = FRAME_CAUSE, .node = net->node, .from = from, .status = (int32_t)status};

    snprintf(f.u.cause, sizeof f.u.cause, "%s", cause);
    ddp_monitor_lock(&net->monitor);
    for (int i = 0; i < net->peer_count; i++)
        say_cause(&net->peers[i], &f);
    ddp_monitor_unlock(&net->monitor);
}

/* ---- records ---- */

static frame record_frame(const ddpi_net *net, const ddpi_side_view *view)
{
    return (frame){
        .kind = FRAME_RECORD, .node = net->node, .from = view->rank, .u = {.view = *view}};
}

static bool same(const ddpi_side_view *a, const ddpi_side_view *b)
{
    return a->present == b->present && a->left == b->left && a->step == b->step &&
           a->entered == b->entered && a->finished == b->finished &&
           strcmp(a->phase, b->phase) == 0;
}

/* To rank 0 all ranks of the node, from rank 0 itself only. */
static void say_records(ddpi_net *net, bool now)
{
    const int count = net->hub ? 1 : ddpi_side_count(net->side);
    const int64_t now_ns = ddp_now_ns();

    for (int i = 0; i < count; i++) {
        const int index = net->hub ? ddpi_side_index(net->side) : i;
        ddpi_side_view view;
        ddpi_side_view_get(net->side, index, &view);
        bool changed = !same(&view, &net->said[index].view);
        int64_t age = now_ns - net->said[index].at_ns;
        bool due = age >= (changed ? RECORD_NS(net->node_count) : BEAT_NS);
        if (!view.present || (!now && !due && !(changed && view.left)))
            continue;
        const frame f = record_frame(net, &view);
        bool complete = true;
        for (int k = 0; k < net->peer_count; k++)
            if (net->peers[k].proven)
                complete = say(&net->peers[k], &f) && complete;
        if (complete)
            net->said[index] = (said){view, now_ns};
    }
}

/* ---- hearing ---- */

static void hear_record(ddpi_net *net, const frame *f)
{
    const int place = net->hub ? f->from : 0;

    if (place < 0 || place >= net->rank_count || f->u.view.rank != f->from)
        return;
    known *k = &net->ranks[place];
    *k = (known){.view = f->u.view, .node = f->node, .heard_ns = ddp_now_ns()};
    k->view.host[sizeof k->view.host - 1] = '\0';
    k->view.phase[sizeof k->view.phase - 1] = '\0';
    k->view.what[sizeof k->view.what - 1] = '\0';
}

static void hear_cause(ddpi_net *net, const peer *from, frame *f, ddpi_net_cause *cause_out)
{
    f->u.cause[sizeof f->u.cause - 1] = '\0';
    *cause_out = (ddpi_net_cause){.from = f->from, .status = (ddp_status)f->status};
    memcpy(cause_out->text, f->u.cause, sizeof cause_out->text);
    for (int i = 0; i < net->peer_count; i++)
        if (&net->peers[i] != from)
            say_cause(&net->peers[i], f);
}

static const peer *peer_of(const ddpi_net *net, int node)
{
    for (int i = 0; i < net->peer_count; i++)
        if (net->peers[i].fd >= 0 && net->peers[i].proven && net->peers[i].node == node)
            return &net->peers[i];
    return NULL;
}

/* The first frame of a connection. False: it is a stranger. */
static bool greet(ddpi_net *net, peer *p, const frame *f)
{
    const uint8_t *want = net->hub ? net->address.hello : net->address.welcome;
    frame answer = {.kind = FRAME_WELCOME};

    if (f->kind != (net->hub ? FRAME_HELLO : FRAME_WELCOME) ||
        memcmp(f->u.token, want, DDPI_NET_TOKEN_BYTES) != 0)
        return false;
    if (net->hub && (f->node < 1 || f->node >= net->node_count || peer_of(net, f->node) != NULL ||
                     f->from < 0 || f->from >= net->rank_count))
        return false;
    memcpy(answer.u.token, net->address.welcome, sizeof answer.u.token);
    if (net->hub && !say(p, &answer))
        return false;
    p->node = net->hub ? f->node : 0;
    p->proven = true;
    /* Its record follows. */
    known *k = &net->ranks[net->hub ? f->from : 0];
    *k = (known){.view = {.present = true, .rank = net->hub ? f->from : 0}, .node = p->node};
    snprintf(k->view.host, sizeof k->view.host, "node %d", p->node);
    return true;
}

/* The other end's rank is the first of its node. One that has not said a record may have taken our
 * silence for a refusal, and tries again. */
static void note_loss(ddpi_net *net, const peer *p)
{
    for (int i = 0; i < net->rank_count && !net->has_lost; i++) {
        const known *k = &net->ranks[i];
        if (!k->view.present || k->node != p->node)
            continue;
        net->has_lost = !k->view.left && k->heard_ns > 0;
        net->lost = k->view;
        return;
    }
}

/* Returns whether there is a cause. */
static bool hear(ddpi_net *net, peer *p, ddpi_net_cause *cause_out)
{
    for (int i = 0; i < FRAMES_PER_TURN; i++) {
        int64_t got =
            ddpi_socket_receive(p->fd, (char *)&p->in + p->in_bytes, sizeof p->in - p->in_bytes);
        if (got == 0)
            return false;
        p->in_bytes += got > 0 ? (size_t)got : 0;
        bool whole = p->in_bytes == sizeof p->in;
        if (got < 0 || (whole && !p->proven && !greet(net, p, &p->in))) {
            if (p->proven)
                note_loss(net, p);
            peer_close(p);
            return false;
        }
        if (!whole)
            continue;
        p->in_bytes = 0;
        if (p->in.kind == FRAME_RECORD)
            hear_record(net, &p->in);
        if (p->in.kind == FRAME_CAUSE) {
            hear_cause(net, p, &p->in, cause_out);
            return true;
        }
    }
    return false;
}

/* ---- connecting ---- */

static void accept_all(ddpi_net *net)
{
    for (int i = 0; i < net->peer_count; i++) {
        if (net->peers[i].fd >= 0)
            continue;
        int fd = ddpi_socket_accept(net->listener);
        if (fd < 0)
            return;
        net->peers[i] = (peer){.fd = fd, .opened_ns = ddp_now_ns()};
    }
}

static void drop_strangers(ddpi_net *net)
{
    const int64_t now_ns = ddp_now_ns();

    for (int i = 0; i < net->peer_count; i++) {
        peer *p = &net->peers[i];
        if (p->fd >= 0 && !p->proven && now_ns - p->opened_ns > PROOF_NS)
            peer_close(p);
    }
}

static void say_hello(ddpi_net *net, peer *p)
{
    ddpi_side_view view;
    frame f = {.kind = FRAME_HELLO, .node = net->node};

    ddpi_side_view_get(net->side, ddpi_side_index(net->side), &view);
    f.from = view.rank;
    memcpy(f.u.token, net->address.hello, sizeof f.u.token);
    if (!say(p, &f))
        peer_close(p);
}

/* One address after the other, until one proves to be rank 0's. */
static void connect_next(ddpi_net *net)
{
    peer *p = &net->peers[0];
    const int64_t now_ns = ddp_now_ns();

    if (p->proven || net->connected || net->given_up)
        return;
    if (p->fd >= 0 && now_ns - p->opened_ns > (p->greeted ? GREET_NS : CONNECT_NS))
        peer_close(p);
    if (p->fd >= 0 && !p->greeted) {
        ddpi_socket_state state = ddpi_socket_connected(p->fd);
        if (state == DDPI_SOCKET_DEAD)
            peer_close(p);
        p->greeted = state == DDPI_SOCKET_READY;
        if (p->greeted)
            say_hello(net, p);
    }
    if (p->fd >= 0)
        return;
    if (now_ns - net->began_ns > GIVE_UP_NS) {
        net->given_up = true;
        ddp_warn("no TCP connection to rank 0's node: failures reach it by MPI only");
        return;
    }
    net->tried = (net->tried + 1) % net->address.count;
    int fd = ddpi_socket_connect(&net->address, net->tried);
    if (fd >= 0)
        *p = (peer){.fd = fd, .opened_ns = now_ns};
}

/* ---- a turn ---- */

bool ddpi_net_poll(ddpi_net *net, ddpi_net_cause *cause_out)
{
    bool caused = false, fresh = false;

    ddp_monitor_lock(&net->monitor);
    if (net->hub) {
        accept_all(net);
        drop_strangers(net);
    } else {
        connect_next(net);
    }
    for (int i = 0; i < net->peer_count && !caused; i++) {
        peer *p = &net->peers[i];
        bool before = p->proven;
        if (p->fd >= 0 && (net->hub || p->greeted))
            caused = hear(net, p, cause_out);
        fresh |= !before && p->proven;
    }
    net->connected |= fresh;
    say_records(net, fresh);
    for (int i = 0; i < net->peer_count; i++)
        if (net->peers[i].fd >= 0)
            (void)flush(&net->peers[i]);
    ddp_monitor_unlock(&net->monitor);
    return caused;
}

bool ddpi_net_way(ddpi_net *net, char *text, size_t text_bytes)
{
    ddp_monitor_lock(&net->monitor);
    const bool there = !net->hub && net->peers[0].proven && net->peers[0].fd >= 0;
    if (there)
        ddpi_socket_own_address(net->peers[0].fd, text, text_bytes);
    ddp_monitor_unlock(&net->monitor);
    return there;
}

void ddpi_net_close(ddpi_net *net, bool left)
{
    if (net == NULL)
        return;
    if (left && net->side != NULL) {
        ddp_monitor_lock(&net->monitor);
        say_records(net, true);
        ddp_monitor_unlock(&net->monitor);
    }
    net_free(net);
}

/* ---- what is known ---- */

int ddpi_net_count(const ddpi_net *net)
{
    return net->hub ? net->rank_count : 0;
}

void ddpi_net_view_get(const ddpi_net *net, int rank, ddpi_side_view *view_out)
{
    *view_out = net->ranks[rank].view;
}

int64_t ddpi_net_silence_ns(const ddpi_net *net, int rank)
{
    const int64_t heard_ns = net->ranks[rank].heard_ns;

    return heard_ns > 0 ? ddp_now_ns() - heard_ns : 0;
}

bool ddpi_net_hears_all(const ddpi_net *net)
{
    int nodes = 1;

    for (int i = 0; net->hub && i < net->peer_count; i++)
        nodes += net->peers[i].fd >= 0 && net->peers[i].proven;
    return net->hub && nodes == net->node_count;
}

bool ddpi_net_lost(const ddpi_net *net, ddpi_side_view *view_out)
{
    if (net->has_lost)
        *view_out = net->lost;
    return net->has_lost;
}
