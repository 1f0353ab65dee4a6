/* doctor_case.h - made-up records for the tests of the doctor's rules: hosts where all is well. */
#ifndef DDP_TESTS_DOCTOR_CASE_H
#define DDP_TESTS_DOCTOR_CASE_H

#include "harness.h"

#include "ddp/memory.h"
#include "doctor/doctor.h"

enum { WORLD = 4, CORES = 8 };
#define GIB ((int64_t)1 << 30)

/* Four ranks, two on each of two hosts, where nothing is wrong. */
typedef struct made {
    ddpi_doctor_record ranks[WORLD];
    ddpi_doctor_case c;
    ddpi_findings found;
} made;

static inline ddpi_doctor_iface iface_of(const char *name, int host)
{
    ddpi_doctor_iface iface = {
        .family = 4, .prefix = 24, .mtu = 1500, .speed_mbit = 1000, .up = true};

    snprintf(iface.name, sizeof iface.name, "%s", name);
    snprintf(iface.address, sizeof iface.address, "10.1.2.%d", host + 1);
    const uint8_t bytes[4] = {10, 1, 2, (uint8_t)(host + 1)};
    memcpy(iface.bytes, bytes, sizeof bytes);
    return iface;
}

static inline void make_rank(ddpi_doctor_record *record, int rank)
{
    *record = (ddpi_doctor_record){.rank = rank, .node = rank / 2};
    snprintf(record->host, sizeof record->host, "host%d", rank / 2);
    for (size_t i = 0; i < CORES; i++)
        CPU_SET(i, &record->cpu.cores);
    record->cpu.at_start = record->cpu.online = CORES;
    record->cpu.threads = CORES / 2;
    record->cpu.numa_total = record->cpu.numa_used = 1;
    record->memory = (ddpi_doctor_memory){.total = 64 * GIB,
                                          .available = 32 * GIB,
                                          .shm_total = 32 * GIB,
                                          .shm_free = 32 * GIB,
                                          .huge = "madvise"};
    record->limits = (ddpi_doctor_limits){.files_soft = 1024,
                                          .files_hard = 4096,
                                          .files_open = 30,
                                          .memlock = INT64_MAX,
                                          .processes = INT64_MAX};
    record->net.list[record->net.count++] = iface_of("eth0", rank / 2);
    record->net.localhost_s = record->net.own_name_s = 0.001;
    record->net.localhost_ok = record->net.own_name_ok = true;
    record->storage.run_shared = true;
    record->storage.run_free = 100 * GIB;
    record->launch.start_s = 0.5;
    snprintf(record->mpi, sizeof record->mpi, "Open MPI v4.1.4");
    snprintf(record->env, sizeof record->env, "OMP_NUM_THREADS=4\n");
}

static inline made *make(void)
{
    made *m;

    CHECK_OK(DDP_ALLOC(m, 1));
    for (int r = 0; r < WORLD; r++)
        make_rank(&m->ranks[r], r);
    m->c = (ddpi_doctor_case){.world = WORLD, .ranks = m->ranks};
    m->c.needs = (ddpi_doctor_needs){.model = "mlp",
                                     .parameters = 1000000,
                                     .shared_bytes = 8000000,
                                     .memory_bytes = 100000000,
                                     .run_dir = "runs",
                                     .saves = true};
    m->c.links.link_count = 1;
    m->c.links.links[0] = (ddpi_doctor_link){
        .from = 0, .to = 2, .latency_s = 5e-5, .rate = 1.1e8, .bytes = 1 << 20, .iface = "eth0"};
    return m;
}

static inline void add_env(made *m, int rank, const char *line)
{
    char *env = m->ranks[rank].env;
    const size_t used = strlen(env);

    snprintf(env + used, sizeof m->ranks[rank].env - used, "%s\n", line);
}

/* All rules: exactly one finding, of this kind, whose cause and remedy contain these. Ends m. */
static inline void check_finds(made *m, ddpi_finding_kind kind, const char *because,
                               const char *remedy)
{
    ddpi_rules_all(&m->c, &m->found);
    if (m->found.count != 1)
        fail_msg("%d findings, expected one with \"%s\"; the first is \"%s\"", m->found.count,
                 because, m->found.list[0].because);
    if (strstr(m->found.list[0].because, because) == NULL)
        fail_msg("found \"%s\", expected \"%s\"", m->found.list[0].because, because);
    if (strstr(m->found.list[0].remedy, remedy) == NULL)
        fail_msg("remedy is \"%s\", expected \"%s\"", m->found.list[0].remedy, remedy);
    assert_int_equal(m->found.list[0].kind, kind);
    ddp_free(m);
}

static inline void check_silent(made *m)
{
    ddpi_rules_all(&m->c, &m->found);
    if (m->found.count != 0)
        fail_msg("found \"%s\", expected nothing", m->found.list[0].because);
    ddp_free(m);
}

#endif
