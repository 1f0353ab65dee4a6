/* test_ring.c - the last works of a rank: their order, their number, and what is known of each. */
#include "harness.h"

#include "comm/ring.h"

static ddp_work work_of(uint64_t seq)
{
    return (ddp_work){.coll = {.kind = DDP_COLL_ALLREDUCE,
                               .dtype = DDP_F32,
                               .count = 10 + seq,
                               .what = "gradients",
                               .bucket = (int)(seq % 3)},
                      .seq = seq,
                      .submit_ns = (int64_t)(1000 + seq)};
}

static void works_are_told_from_submission_to_end(void **state)
{
    (void)state;
    static ddpi_ring ring;
    static ddp_work_record records[DDP_WORK_RECORDS];
    ddp_work first = work_of(0), second = work_of(1);

    assert_int_equal(ddpi_ring_read(&ring, 0, records), 0);
    ddpi_ring_begin(&ring, &first, 87);
    ddpi_ring_begin(&ring, &second, 88);
    first.start_ns = 1500;
    first.end_ns = 1600;
    ddpi_ring_end(&ring, &first);
    assert_int_equal(ddpi_ring_read(&ring, 2, records), 2);
    assert_int_equal(records[0].seq, 0);
    assert_string_equal(records[0].kind, "allreduce");
    assert_string_equal(records[0].what, "gradients");
    assert_int_equal(records[0].bytes, 40);
    assert_int_equal(records[0].step, 87);
    assert_int_equal(records[0].submit_ns, 1000);
    assert_int_equal(records[0].start_ns, 1500);
    assert_int_equal(records[0].end_ns, 1600);
    assert_int_equal(records[1].bucket, 1);
    assert_int_equal(records[1].step, 88);
    assert_int_equal(records[1].end_ns, 0);
}

static void the_last_works_stay_oldest_first(void **state)
{
    (void)state;
    static ddpi_ring ring;
    static ddp_work_record records[DDP_WORK_RECORDS];
    const uint64_t total = 3 * DDP_WORK_RECORDS + 7;

    for (uint64_t seq = 0; seq < total; seq++) {
        ddp_work work = work_of(seq);
        ddpi_ring_begin(&ring, &work, (int64_t)seq);
    }
    /* One that ends after its place was taken changes nothing. */
    ddp_work old = work_of(7);
    old.end_ns = 1;
    ddpi_ring_end(&ring, &old);
    assert_int_equal(ddpi_ring_read(&ring, total, records), DDP_WORK_RECORDS);
    for (int i = 0; i < DDP_WORK_RECORDS; i++) {
        assert_int_equal(records[i].seq, total - DDP_WORK_RECORDS + (uint64_t)i);
        assert_int_equal(records[i].step, records[i].seq);
        assert_int_equal(records[i].end_ns, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(works_are_told_from_submission_to_end),
        cmocka_unit_test(the_last_works_stay_oldest_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
