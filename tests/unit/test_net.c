/* test_net.c - the side channel between nodes: what reaches whom, who is let in, and whose end is
 * noticed. Three nodes of one rank each, polled by one thread. */
#include "harness.h"

#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/net.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

enum { NODES = 3 };

typedef struct star {
    ddpi_net_address address;
    ddpi_net *nets[NODES];
    ddpi_side *sides[NODES];
    void *memory[NODES];
    bool caused[NODES];
    ddpi_net_cause causes[NODES];
} star;

static void open_side(star *s, int node)
{
    CHECK_OK(ddp_alloc_bytes(1, ddpi_side_bytes(1), &s->memory[node]));
    ddpi_side_opts opts = {s->memory[node], 1, 0, node, node == 0 ? "alpha" : "beta"};
    CHECK_OK(ddpi_side_open(&opts, &s->sides[node]));
    CHECK_OK(ddpi_net_attach(s->nets[node], s->sides[node]));
}

static void poll_all(star *s)
{
    for (int i = 0; i < NODES; i++)
        if (s->nets[i] != NULL && !s->caused[i])
            s->caused[i] = ddpi_net_poll(s->nets[i], &s->causes[i]);
}

/* Turns until the condition holds, or half a minute has passed. */
#define TURN_UNTIL(s, condition)                                                                   \
    do {                                                                                           \
        const int64_t end_ns_ = ddp_deadline_after_ms(30000);                                      \
        while (poll_all(s), !(condition) && ddp_now_ns() < end_ns_)                                \
            ddp_sleep_ns(1000000);                                                                 \
        assert_true(condition);                                                                    \
    } while (0)

static ddpi_side_view seen(const star *s, int rank)
{
    ddpi_side_view view;

    ddpi_net_view_get(s->nets[0], rank, &view);
    return view;
}

static void star_open(star *s)
{
    *s = (star){.caused = {false}};
    CHECK_OK(ddpi_net_listen(NODES, NODES, &s->address, &s->nets[0]));
    for (int i = 1; i < NODES; i++)
        CHECK_OK(ddpi_net_join(&s->address, i, &s->nets[i]));
    for (int i = 0; i < NODES; i++) {
        open_side(s, i);
        ddpi_side_note(s->sides[i], 10 + i, "forward");
    }
    TURN_UNTIL(s, ddpi_net_hears_all(s->nets[0]) && seen(s, 1).step == 11 && seen(s, 2).step == 12);
}

/* Without a word, as the kernel does for a dead process; or in order. */
static void node_close(star *s, int node, bool left)
{
    if (left)
        ddpi_side_leave(s->sides[node]);
    ddpi_net_close(s->nets[node], left);
    ddpi_side_close(s->sides[node], left);
    ddp_free(s->memory[node]);
    s->nets[node] = NULL;
}

static void star_close(star *s)
{
    for (int i = 0; i < NODES; i++)
        if (s->nets[i] != NULL)
            node_close(s, i, false);
}

static void the_first_node_hears_all_records(void **state)
{
    (void)state;
    star s;

    star_open(&s);
    assert_int_equal(ddpi_net_count(s.nets[0]), NODES);
    assert_int_equal(ddpi_net_count(s.nets[1]), 0);
    assert_false(seen(&s, 0).present); /* that is in its own memory */
    assert_string_equal(seen(&s, 2).host, "beta");
    ddp_work work = {.coll = {.kind = DDP_COLL_ALLREDUCE, .what = "gradients", .bucket = 2},
                     .seq = 41};
    ddpi_side_entered(s.sides[1], &work);
    ddpi_side_note(s.sides[1], 12, "backward");
    TURN_UNTIL(&s, seen(&s, 1).entered == 42);
    assert_string_equal(seen(&s, 1).phase, "backward");
    assert_true(ddpi_net_silence_ns(s.nets[0], 1) < 10000000000);
    star_close(&s);
}

static void a_cause_reaches_every_other_node(void **state)
{
    (void)state;
    for (int from = 0; from < NODES; from++) {
        star s;
        star_open(&s);
        ddpi_net_tell(s.nets[from], from, DDP_ERR_TIMEOUT, "the disk is full");
        TURN_UNTIL(&s, s.caused[0] + s.caused[1] + s.caused[2] == NODES - 1);
        assert_false(s.caused[from]);
        const ddpi_net_cause *heard = &s.causes[from == 0 ? 1 : 0];
        assert_int_equal(heard->from, from);
        assert_int_equal(heard->status, DDP_ERR_TIMEOUT);
        assert_string_equal(heard->text, "the disk is full");
        star_close(&s);
    }
}

static void *tell_often(void *arg)
{
    ddpi_net *net = arg;

    for (int i = 0; i < 200; i++)
        ddpi_net_tell(net, 1, DDP_ERR_PEER, "told from another thread");
    return NULL;
}

/* The thread that fails is seldom the one that polls. */
static void a_cause_may_be_told_while_polling(void **state)
{
    (void)state;
    star s;
    ddp_thread teller;

    star_open(&s);
    CHECK_OK(ddp_thread_start(&teller, "teller", tell_often, s.nets[1]));
    TURN_UNTIL(&s, s.caused[0] && s.caused[2]);
    ddp_thread_join(&teller);
    assert_string_equal(s.causes[2].text, "told from another thread");
    assert_int_equal(s.causes[2].from, 1);
    star_close(&s);
}

static void a_lost_rank_is_named(void **state)
{
    (void)state;
    star s;
    ddpi_side_view view;

    star_open(&s);
    assert_false(ddpi_net_lost(s.nets[0], &view));
    node_close(&s, 2, false);
    TURN_UNTIL(&s, ddpi_net_lost(s.nets[0], &view));
    assert_int_equal(view.rank, 2);
    assert_int_equal(view.pid, getpid());
    assert_int_equal(view.step, 12);
    assert_false(ddpi_net_hears_all(s.nets[0]));
    assert_false(ddpi_net_lost(s.nets[1], &view));
    /* Rank 0's end is noticed by the others. */
    node_close(&s, 0, false);
    TURN_UNTIL(&s, ddpi_net_lost(s.nets[1], &view));
    assert_int_equal(view.rank, 0);
    assert_string_equal(view.host, "alpha");
    star_close(&s);
}

static void leaving_in_order_alarms_nobody(void **state)
{
    (void)state;
    star s;
    ddpi_side_view view;

    star_open(&s);
    node_close(&s, 1, true);
    TURN_UNTIL(&s, seen(&s, 1).left && !ddpi_net_hears_all(s.nets[0]));
    assert_false(ddpi_net_lost(s.nets[0], &view));
    node_close(&s, 0, true);
    for (int i = 0; i < 50; i++) {
        poll_all(&s);
        ddp_sleep_ns(1000000);
    }
    assert_false(ddpi_net_lost(s.nets[2], &view));
    star_close(&s);
}

/* The first rank of a node speaks for the others, of which one leaves in order before it. */
static void a_node_of_two_ranks_is_known_in_full(void **state)
{
    (void)state;
    star s = {.caused = {false}};
    ddpi_side *first, *second;
    ddpi_side_view view;
    void *memory;

    CHECK_OK(ddpi_net_listen(2, 3, &s.address, &s.nets[0]));
    open_side(&s, 0);
    CHECK_OK(ddp_alloc_bytes(1, ddpi_side_bytes(2), &memory));
    CHECK_OK(ddpi_side_open(&(ddpi_side_opts){memory, 2, 0, 1, "beta"}, &first));
    CHECK_OK(ddpi_side_open(&(ddpi_side_opts){memory, 2, 1, 2, "beta"}, &second));
    CHECK_OK(ddpi_net_join(&s.address, 1, &s.nets[1]));
    CHECK_OK(ddpi_net_attach(s.nets[1], first));
    ddpi_side_note(second, 5, "loading data");
    TURN_UNTIL(&s, seen(&s, 1).present && seen(&s, 2).step == 5);
    assert_true(ddpi_net_hears_all(s.nets[0]));
    ddpi_side_leave(second);
    TURN_UNTIL(&s, seen(&s, 2).left);
    ddpi_net_close(s.nets[1], false);
    s.nets[1] = NULL;
    TURN_UNTIL(&s, ddpi_net_lost(s.nets[0], &view));
    assert_int_equal(view.rank, 1);
    ddpi_side_close(first, false);
    ddpi_side_close(second, false);
    ddp_free(memory);
    star_close(&s);
}

/* A plain connection to the port. */
static int stranger(const star *s)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)s->address.port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static bool is_closed(int fd)
{
    char byte;

    return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

static void strangers_are_dropped(void **state)
{
    (void)state;
    star s;
    ddpi_net *impostor;
    ddpi_side_view view;
    char nonsense[4096];

    star_open(&s);
    memset(nonsense, 'x', sizeof nonsense);
    int talker = stranger(&s), silent = stranger(&s);
    assert_true(send(talker, nonsense, sizeof nonsense, MSG_NOSIGNAL) > 0);
    /* With unread bytes, the kernel resets the connection: then recv fails instead. */
    TURN_UNTIL(&s, send(talker, nonsense, 1, MSG_NOSIGNAL) < 0);
    /* One that has the right form but another token, for a node that is there and one that is not.
     */
    ddpi_net_address wrong = s.address;
    wrong.hello[3] ^= 1;
    CHECK_OK(ddpi_net_join(&wrong, 2, &impostor));
    CHECK_OK(ddpi_net_attach(impostor, s.sides[1]));
    ddpi_net_cause cause;
    for (int i = 0; i < 100; i++) {
        assert_false(ddpi_net_poll(impostor, &cause));
        ddpi_net_tell(impostor, 2, DDP_ERR_COMM, "a lie");
        poll_all(&s);
        ddp_sleep_ns(1000000);
    }
    assert_false(s.caused[0] || s.caused[1] || s.caused[2]);
    ddpi_net_close(impostor, false);
    assert_false(ddpi_net_lost(s.nets[0], &view));
    assert_true(ddpi_net_hears_all(s.nets[0]));
    /* Who says nothing has two seconds. */
    const int64_t end_ns = ddp_deadline_after_ms(30000);
    while (!is_closed(silent) && ddp_now_ns() < end_ns) {
        poll_all(&s);
        ddp_sleep_ns(10000000);
    }
    assert_true(is_closed(silent));
    close(talker);
    close(silent);
    star_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_node_hears_all_records),
        cmocka_unit_test(a_cause_reaches_every_other_node),
        cmocka_unit_test(a_cause_may_be_told_while_polling),
        cmocka_unit_test(a_lost_rank_is_named),
        cmocka_unit_test(leaving_in_order_alarms_nobody),
        cmocka_unit_test(a_node_of_two_ranks_is_known_in_full),
        cmocka_unit_test(strangers_are_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
