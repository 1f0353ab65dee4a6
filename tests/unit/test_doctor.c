/* unit.doctor - the doctor's rules about cores, limits and files, on made-up records: each is
 * silent where all is well, and says what is wrong where it is. And its list, its report, its
 * collectors. */
#include "doctor_case.h"

static void says_nothing_where_all_is_well(void **state)
{
    (void)state;
    check_silent(make());
}

/* ---- storage ---- */

static void finds_directories_that_cannot_be_used(void **state)
{
    (void)state;
    made *m = make();
    snprintf(m->ranks[2].storage.data_error, 64, "/data: No such file or directory");
    snprintf(m->ranks[3].storage.data_error, 64, "/data: No such file or directory");
    check_finds(m, DDPI_FINDING_FAILS, "rank 2 on host1 cannot read the data: /data: No such",
                "--data-dir");
    m = make();
    snprintf(m->ranks[3].storage.data_error, 64, "/data: Permission denied");
    check_finds(m, DDPI_FINDING_NOTE, "rank 3 on host1 cannot read the data", "--data-dir");
    m = make();
    snprintf(m->ranks[1].storage.run_error, 64, "create runs/x: Permission denied");
    m->ranks[1].storage.run_shared = false;
    check_finds(m, DDPI_FINDING_FAILS, "rank 1 on host0 cannot write the run directory",
                "--run-dir");
}

static void finds_hosts_without_a_common_file_system(void **state)
{
    (void)state;
    made *m = make();
    m->ranks[2].storage.run_shared = m->ranks[3].storage.run_shared = false;
    check_finds(m, DDPI_FINDING_FAILS, "host0 and host1 do not see the same directory", "share");
    m = make();
    m->ranks[2].storage.run_shared = m->ranks[3].storage.run_shared = false;
    m->c.needs.saves = false;
    check_finds(m, DDPI_FINDING_NOTE, "each keeps its ranks' logs", "share");
}

static void finds_disks_too_full_for_a_checkpoint(void **state)
{
    (void)state;
    made *m = make();
    m->ranks[0].storage.run_free = 11999999;
    check_finds(m, DDPI_FINDING_FAILS, "a checkpoint takes up to 11 MiB", "room");
    m = make();
    m->ranks[0].storage.run_free = 12000000;
    check_silent(m);
}

/* ---- limits and memory ---- */

static void finds_low_limits(void **state)
{
    (void)state;
    made *m = make();
    m->ranks[2].limits.files_hard = 30 + 4 + 2 * 2 - 1;
    check_finds(m, DDPI_FINDING_FAILS, "rank 2 on host1 may open 37 files and needs about 38",
                "ulimit -Hn 1024");
    m = make();
    m->ranks[2].limits.files_hard = m->ranks[3].limits.files_hard = 38;
    check_finds(m, DDPI_FINDING_NOTE, "rank 2 on host1 may open 38 files, and has 30 open",
                "ulimit -Hn 1024");
    m = make();
    m->ranks[0].limits.processes = 2 * (CORES / 2 + 8) - 1;
    check_finds(m, DDPI_FINDING_FAILS, "may start 23 more threads", "pids");
    m = make();
    m->ranks[0].limits.processes = 2 * (CORES / 2 + 8);
    check_silent(m);
}

static void asks_for_locked_memory_only_for_infiniband(void **state)
{
    (void)state;
    made *m = make();
    m->ranks[1].limits.memlock = 65536;
    check_silent(m);
    m = make();
    m->ranks[1].limits.memlock = 65536;
    m->ranks[1].limits.infiniband = true;
    check_finds(m, DDPI_FINDING_FAILS, "rank 1 on host0 may lock 64 KiB", "LimitMEMLOCK");
    m = make();
    m->ranks[1].limits.infiniband = true;
    check_silent(m);
}

static void finds_too_little_memory(void **state)
{
    (void)state;
    made *m = make();
    m->ranks[2].memory.shm_total = 64 << 20;
    m->ranks[2].memory.shm_free = 2 * 8000000 - 1;
    check_finds(m, DDPI_FINDING_SLOW, "2 ranks share 15 MiB through /dev/shm on host1",
                "--shm-size");
    m = make();
    m->ranks[2].memory.shm_free = 2 * 8000000;
    check_silent(m);
    m = make();
    m->ranks[0].memory.available = 2 * 100000000 - 1;
    m->ranks[0].memory.limit = GIB;
    check_finds(m, DDPI_FINDING_FAILS,
                "2 ranks on host0 need at least 191 MiB of memory, and 191 MiB "
                "are available in its control group",
                "--batch-size");
    m = make();
    m->ranks[0].memory.available = 2 * 100000000;
    check_silent(m);
    m = make();
    snprintf(m->ranks[0].memory.huge, sizeof m->ranks[0].memory.huge, "never");
    check_finds(m, DDPI_FINDING_SLOW, "host0 gives no huge pages", "transparent_hugepage");
}

static void finds_too_little_shared_memory_for_nccl(void **state)
{
    (void)state;
    made *m = make();
    m->c.needs.cuda = m->c.needs.nccl = true;
    m->ranks[0].memory.shm_free = (32 << 20) - 1;
    check_finds(m, DDPI_FINDING_FAILS, "NCCL needs about 32 MiB of /dev/shm on host0",
                "--shm-size");
    m = make();
    m->c.needs.cuda = m->c.needs.nccl = true;
    m->ranks[0].memory.shm_free = 32 << 20;
    check_silent(m);
}

/* ---- cores ---- */

static void give_cores(made *m, int rank, size_t first, size_t count)
{
    CPU_ZERO(&m->ranks[rank].cpu.cores);
    for (size_t i = first; i < first + count; i++)
        CPU_SET(i, &m->ranks[rank].cpu.cores);
    m->ranks[rank].cpu.at_start = (int32_t)count;
    m->ranks[rank].cpu.threads = 1;
}

static void finds_ranks_on_the_same_core(void **state)
{
    (void)state;
    made *m = make();
    give_cores(m, 0, 3, 1);
    give_cores(m, 1, 3, 1);
    check_finds(m, DDPI_FINDING_SLOW, "ranks 0-1 on host0 may all run on core 3 only, of 8",
                "--bind-to none");
    m = make();
    give_cores(m, 2, 0, 1);
    give_cores(m, 3, 1, 1);
    check_finds(m, DDPI_FINDING_SLOW, "the launcher has bound the 2 ranks of host1 to 2 of its 8",
                "--bind-to none");
    m = make();
    give_cores(m, 2, 0, 4);
    give_cores(m, 3, 4, 4);
    check_silent(m);
    m = make();
    give_cores(m, 2, 0, 4); /* alike: a control group's doing */
    give_cores(m, 3, 0, 4);
    check_silent(m);
}

static void finds_two_of_many_on_one_core(void **state)
{
    (void)state;
    made *m = make();
    for (int r = 0; r < WORLD; r++)
        snprintf(m->ranks[r].host, sizeof m->ranks[r].host, "host0");
    give_cores(m, 0, 0, 1);
    give_cores(m, 1, 0, 1);
    give_cores(m, 2, 1, 3);
    give_cores(m, 3, 4, 4);
    check_finds(m, DDPI_FINDING_SLOW, "ranks 0 and 1 are both bound to core 0 of host0",
                "--bind-to none");
}

static void finds_more_ranks_than_cores(void **state)
{
    (void)state;
    made *m = make();
    for (int r = 2; r < WORLD; r++) {
        m->ranks[r].cpu.online = 1;
        give_cores(m, r, 0, 1);
    }
    check_finds(m, DDPI_FINDING_SLOW, "2 ranks share the 1 core of host1",
                "at most 1 rank on host1");
}

static void finds_too_many_threads(void **state)
{
    (void)state;
    made *m = make();
    m->ranks[3].cpu.threads = CORES + 1;
    check_finds(m, DDPI_FINDING_SLOW, "rank 3 of host1: 9 threads each on 8 cores", "--threads");
    m = make();
    m->ranks[2].cpu.at_start = CORES + 2;
    check_finds(m, DDPI_FINDING_SLOW,
                "rank 2 of host1: a library has narrowed the cores from 10 to 8", "OMP_PROC_BIND");
    m = make();
    m->ranks[0].cpu.quota = 7.5;
    check_finds(m, DDPI_FINDING_SLOW, "host0 allows 7.5 cores' time to 8 threads",
                "at most 7 ranks");
    m = make();
    m->ranks[0].cpu.quota = 8;
    check_silent(m);
    m = make();
    m->ranks[0].cpu.numa_total = m->ranks[0].cpu.numa_used = 2;
    check_finds(m, DDPI_FINDING_SLOW, "between 2 NUMA nodes", "--map-by numa");
}

static void finds_ranks_badly_spread(void **state)
{
    (void)state;
    made *m = make();
    m->ranks[0].launch.slurm_nodes = 4;
    check_finds(m, DDPI_FINDING_SLOW, "Slurm's job has 4 nodes, but all 4 ranks are on 2 of them",
                "--ntasks-per-node");
    m = make();
    m->ranks[0].launch.slurm_nodes = 2;
    check_silent(m);
    m = make();
    make_rank(&m->ranks[2], 1);
    check_finds(m, DDPI_FINDING_SLOW, "host0 has 3 ranks and host1 has 1", "slots");
}

/* ---- the list and the report ---- */

static void keeps_a_finding_once_and_counts_what_has_no_room(void **state)
{
    (void)state;
    made *m = make();
    for (int i = 0; i < 2 * (DDPI_FINDINGS + 3); i++)
        ddpi_findings_add(&m->found, DDPI_FINDING_NOTE, "nothing", "number %d", i / 2);
    assert_int_equal(m->found.count, DDPI_FINDINGS);
    assert_int_equal(m->found.dropped, 6);
    ddp_free(m);
}

static void reports_hosts_links_and_findings(void **state)
{
    (void)state;
    made *m = make();
    char *text;
    ddpi_findings_add(&m->found, DDPI_FINDING_SLOW, "wait", "it is late");
    ddpi_findings_add(&m->found, DDPI_FINDING_FAILS, "run", "it is early");
    CHECK_OK(ddpi_doctor_report(&m->c, &m->found, &text));
    assert_non_null(strstr(text, "doctor: 4 ranks on 2 hosts"));
    assert_non_null(strstr(text, "\n  host1            2-3 "));
    assert_non_null(strstr(text, "10.1.2.2/24"));
    assert_non_null(strstr(text, "0-2 host0-host1"));
    assert_non_null(strstr(text, "0.110 GB/s"));
    const char *early = strstr(text, "this will fail because it is early; do: run\n");
    assert_non_null(early);
    assert_non_null(strstr(early, "this will be slow because it is late; do: wait\n"));
    assert_null(strstr(text, "nothing was found"));
    ddp_free(text);
    ddp_free(m);
}

/* ---- collectors, as far as any machine has to answer alike ---- */

static void looks_at_this_machine(void **state)
{
    (void)state;
    ddpi_doctor_record *record;
    char build[64];
    CHECK_OK(DDP_ALLOC(record, 1));
    ddpi_doctor_look_at_host(record);
    ddpi_doctor_look_at_limits(&record->limits);
    ddpi_doctor_look_at_net(&record->net);
    assert_true(CPU_COUNT(&record->cpu.cores) > 0 && record->cpu.online > 0);
    assert_true(record->memory.available > 0 && record->memory.available <= record->memory.total);
    assert_true(record->limits.files_open > 2 && record->limits.files_hard > 2);
    ddpi_doctor_build(build, sizeof build);
    assert_memory_equal(build, DDP_VERSION " ", sizeof DDP_VERSION);
    ddp_free(record);
}

static void keeps_variables_that_matter(void **state)
{
    (void)state;
    char text[DDPI_DOCTOR_ENV_BYTES];
    char *const envp[] = {"OMP_NUM_THREADS=2",
                          "HOME=/root",
                          "OMPI_MCA_orte_hnp_uri=secret",
                          "NCCL_DEBUG=INFO",
                          "SLURM_JOB_NUM_NODES=3",
                          "NCCL_ALGO=a\tb",
                          NULL};
    ddpi_doctor_look_at_env(envp, text, sizeof text);
    assert_string_equal(text, "NCCL_ALGO=a?b\nOMP_NUM_THREADS=2\n");
    assert_int_equal(ddpi_doctor_number(envp, "SLURM_JOB_NUM_NODES"), 3);
    assert_int_equal(ddpi_doctor_number(envp, "SLURM_NTASKS"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_nothing_where_all_is_well),
        cmocka_unit_test(finds_directories_that_cannot_be_used),
        cmocka_unit_test(finds_hosts_without_a_common_file_system),
        cmocka_unit_test(finds_disks_too_full_for_a_checkpoint),
        cmocka_unit_test(finds_low_limits),
        cmocka_unit_test(asks_for_locked_memory_only_for_infiniband),
        cmocka_unit_test(finds_too_little_memory),
        cmocka_unit_test(finds_too_little_shared_memory_for_nccl),
        cmocka_unit_test(finds_ranks_on_the_same_core),
        cmocka_unit_test(finds_two_of_many_on_one_core),
        cmocka_unit_test(finds_more_ranks_than_cores),
        cmocka_unit_test(finds_too_many_threads),
        cmocka_unit_test(finds_ranks_badly_spread),
        cmocka_unit_test(keeps_a_finding_once_and_counts_what_has_no_room),
        cmocka_unit_test(reports_hosts_links_and_findings),
        cmocka_unit_test(looks_at_this_machine),
        cmocka_unit_test(keeps_variables_that_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
