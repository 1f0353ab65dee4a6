/* Verdicts and fingerprints: every rank gets the same one, and it says who and what. */
#include "harness.h"

#include "ddp/comm.h"
#include "loopback_ranks.h"

#define WORLD 4

typedef struct texts {
    ddp_status want;
    const char *words[3];      /* that every rank's message contains */
    ddp_status mine[WORLD];    /* for agree */
    const char *prints[WORLD]; /* for fingerprint */
} texts;

/* A failure here would end the job as designed, so the ranks compare and return OK themselves. */
static ddp_status expect(ddp_comm *comm, const texts *t, ddp_status got)
{
    char message[1024];
    snprintf(message, sizeof message, "%s", got != DDP_OK ? ddp_status_message() : "");
    if (got != t->want)
        return DDP_FAIL(DDP_ERR_INTERNAL, "rank %d got %s (%s)", ddp_comm_rank(comm),
                        ddp_status_name(got), message);
    for (int i = 0; i < 3 && t->words[i] != NULL; i++)
        if (strstr(message, t->words[i]) == NULL)
            return DDP_FAIL(DDP_ERR_INTERNAL, "rank %d: \"%s\" does not contain \"%s\"",
                            ddp_comm_rank(comm), message, t->words[i]);
    return DDP_OK;
}

static ddp_status agree_on(ddp_comm *comm, void *arg)
{
    const texts *t = arg;
    int rank = ddp_comm_rank(comm);
    ddp_status mine = t->mine[rank];
    if (mine != DDP_OK)
        mine = DDP_FAIL(mine, "cause of rank %d", rank);
    ddp_status got = ddp_comm_agree(comm, mine, "test");
    DDP_TRY(expect(comm, t, got));
    /* Whose failure it is, is said to the others only. */
    bool named = t->want != DDP_OK && strncmp(ddp_status_message(), "rank ", 5) == 0;
    if (t->want != DDP_OK && named != (t->mine[rank] != t->want))
        return DDP_FAIL(DDP_ERR_INTERNAL, "rank %d: \"%s\"", rank, ddp_status_message());
    /* An agreed failure does not end the communicator. */
    return ddp_comm_barrier(comm);
}

static ddp_status compare(ddp_comm *comm, void *arg)
{
    const texts *t = arg;
    ddp_status got = ddp_comm_fingerprint(comm, t->prints[ddp_comm_rank(comm)], "configuration");
    DDP_TRY(expect(comm, t, got));
    return ddp_comm_barrier(comm);
}

static void run(texts *t, rank_fn fn)
{
    for (int shared = 0; shared < 2; shared++) {
        ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
        opts.exit_on_failure = false;
        opts.shared_memory = shared != 0;
        CHECK_OK(run_ranks(&opts, WORLD, fn, t));
    }
}

static void all_well_is_ok_everywhere(void **state)
{
    (void)state;
    texts t = {.want = DDP_OK};
    run(&t, agree_on);
}

static void one_failure_is_everybodys(void **state)
{
    (void)state;
    texts t = {.want = DDP_ERR_FORMAT,
               .words = {"cause of rank 2"},
               .mine = {DDP_OK, DDP_OK, DDP_ERR_FORMAT, DDP_OK}};
    run(&t, agree_on);
}

static void lowest_failing_rank_has_the_word(void **state)
{
    (void)state;
    texts t = {.want = DDP_ERR_IO,
               .words = {"cause of rank 1"},
               .mine = {DDP_OK, DDP_ERR_IO, DDP_ERR_FORMAT, DDP_ERR_NOMEM}};
    run(&t, agree_on);
}

static void rank_0_may_fail_too(void **state)
{
    (void)state;
    texts t = {.want = DDP_ERR_USAGE, .words = {"cause of rank 0"}, .mine = {DDP_ERR_USAGE}};
    run(&t, agree_on);
}

static void equal_texts_agree(void **state)
{
    (void)state;
    texts t = {.want = DDP_OK, .prints = {"a=1\nb=2\n", "a=1\nb=2\n", "a=1\nb=2\n", "a=1\nb=2\n"}};
    run(&t, compare);
    t = (texts){.want = DDP_OK, .prints = {"", "", "", ""}};
    run(&t, compare);
}

static void first_differing_line_is_shown(void **state)
{
    (void)state;
    texts t = {
        .want = DDP_ERR_MISMATCH,
        .words = {"configuration differs: rank 2", "has \"lr=0.3\"", "rank 0 has \"lr=0.2\""},
        .prints = {"seed=1\nlr=0.2\nx=1\n", "seed=1\nlr=0.2\nx=1\n", "seed=1\nlr=0.3\nx=2\n",
                   "seed=9\nlr=0.2\nx=1\n"}};
    run(&t, compare);
}

static void longer_text_differs_at_its_end(void **state)
{
    (void)state;
    texts t = {.want = DDP_ERR_MISMATCH,
               .words = {"rank 3", "has \"b=2\"", "rank 0 has the end of the text"},
               .prints = {"a=1\n", "a=1\n", "a=1\n", "a=1\nb=2\n"}};
    run(&t, compare);
    t = (texts){.want = DDP_ERR_MISMATCH,
                .words = {"rank 1", "has the end of the text", "rank 0 has \"a=1\""},
                .prints = {"a=1", "", "a=1", "a=1"}};
    run(&t, compare);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_well_is_ok_everywhere),
        cmocka_unit_test(one_failure_is_everybodys),
        cmocka_unit_test(lowest_failing_rank_has_the_word),
        cmocka_unit_test(rank_0_may_fail_too),
        cmocka_unit_test(equal_texts_agree),
        cmocka_unit_test(first_differing_line_is_shown),
        cmocka_unit_test(longer_text_differs_at_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
