/* rules_cores.c - ranks that have too few cores, or the wrong ones. Pure functions of records. */
#include <stdio.h>
#include <string.h>

#include "doctor/findings.h"

enum { TEXT_BYTES = 160 };
#define NO_BINDING                                                                                 \
    "start with mpirun --bind-to none (Slurm: srun --cpu-bind=none, or more --cpus-per-task)"

static bool same_cores(const ddpi_doctor_case *c, int rank)
{
    for (int r = 0; r < c->world; r++)
        if (strcmp(c->ranks[r].host, c->ranks[rank].host) == 0 &&
            !CPU_EQUAL(&c->ranks[r].cpu.cores, &c->ranks[rank].cpu.cores))
            return false;
    return true;
}

/* More ranks than cores, though the host has enough: they were put on the same ones. */
static void check_crowd(const ddpi_doctor_case *c, int host, ddpi_findings *out)
{
    const ddpi_doctor_record *record = &c->ranks[host];
    const int ranks = ddpi_about_ranks_of(c, host);
    char cores_text[TEXT_BYTES], ranks_text[TEXT_BYTES];
    cpu_set_t cores;

    ddpi_about_cores_of(c, host, &cores);
    const int count = CPU_COUNT(&cores);
    if (count == 0 || ranks <= count || record->cpu.online < ranks)
        return;
    ddpi_findings_add(out, DDPI_FINDING_SLOW, NO_BINDING,
                      "%s on %s may all run on core%s %s only, of %d",
                      ddpi_about_ranks(c, host, NULL, ranks_text, sizeof ranks_text), record->host,
                      count == 1 ? "" : "s",
                      ddpi_about_cores(&cores, cores_text, sizeof cores_text), record->cpu.online);
}

static void check_total(const ddpi_doctor_case *c, int host, ddpi_findings *out)
{
    const ddpi_doctor_record *record = &c->ranks[host];
    const int ranks = ddpi_about_ranks_of(c, host);
    char remedy[TEXT_BYTES];
    cpu_set_t cores;

    ddpi_about_cores_of(c, host, &cores);
    const int count = CPU_COUNT(&cores);
    if (count == 0 || ranks <= count || record->cpu.online >= ranks)
        return;
    snprintf(remedy, sizeof remedy, "start at most %d rank%s on %.64s", count,
             count == 1 ? "" : "s", record->host);
    ddpi_findings_add(out, DDPI_FINDING_SLOW, remedy, "%d ranks share the %d core%s of %s", ranks,
                      count, count == 1 ? "" : "s", record->host);
}

/* mpirun binds each rank to one core unless it is told otherwise, which leaves the others idle. */
static void check_binding(const ddpi_doctor_case *c, int host, ddpi_findings *out)
{
    const ddpi_doctor_record *record = &c->ranks[host];
    const int ranks = ddpi_about_ranks_of(c, host);
    cpu_set_t cores;

    ddpi_about_cores_of(c, host, &cores);
    const int count = CPU_COUNT(&cores);
    if (ranks < 2 || count < ranks || count >= record->cpu.online || same_cores(c, host))
        return;
    ddpi_findings_add(out, DDPI_FINDING_SLOW, NO_BINDING,
                      "the launcher has bound the %d ranks of %s to %d of its %d cores", ranks,
                      record->host, count, record->cpu.online);
}

static void check_pairs(const ddpi_doctor_case *c, int rank, ddpi_findings *out)
{
    const ddpi_doctor_record *b = &c->ranks[rank];

    for (int r = 0; r < rank; r++) {
        const ddpi_doctor_record *a = &c->ranks[r];
        char text[TEXT_BYTES];
        cpu_set_t cores;
        if (strcmp(a->host, b->host) != 0 || CPU_COUNT(&b->cpu.cores) != 1 ||
            !CPU_EQUAL(&a->cpu.cores, &b->cpu.cores))
            continue;
        ddpi_about_cores_of(c, rank, &cores);
        if (CPU_COUNT(&cores) < ddpi_about_ranks_of(c, rank))
            return; /* check_crowd() says it of all */
        ddpi_findings_add(out, DDPI_FINDING_SLOW, NO_BINDING,
                          "ranks %d and %d are both bound to core %s of %s", r, rank,
                          ddpi_about_cores(&b->cpu.cores, text, sizeof text), b->host);
        return;
    }
}

static bool has_too_many_threads(const ddpi_doctor_record *record)
{
    return CPU_COUNT(&record->cpu.cores) > 0 && record->cpu.threads > CPU_COUNT(&record->cpu.cores);
}

static bool was_narrowed(const ddpi_doctor_record *record)
{
    return CPU_COUNT(&record->cpu.cores) < record->cpu.at_start && record->gpu.uuid[0] == '\0';
}

static void check_threads(const ddpi_doctor_case *c, int host, ddpi_findings *out)
{
    char ranks[TEXT_BYTES];

    for (int r = host; r < c->world; r++) {
        const ddpi_doctor_cpu *cpu = &c->ranks[r].cpu;
        if (strcmp(c->ranks[r].host, c->ranks[host].host) != 0)
            continue;
        if (has_too_many_threads(&c->ranks[r]))
            ddpi_findings_add(out, DDPI_FINDING_SLOW,
                              "start with mpirun --bind-to none, or with fewer --threads",
                              "%s of %s: %d threads each on %d core%s",
                              ddpi_about_ranks(c, host, has_too_many_threads, ranks, sizeof ranks),
                              c->ranks[host].host, cpu->threads, CPU_COUNT(&cpu->cores),
                              CPU_COUNT(&cpu->cores) == 1 ? "" : "s");
        else if (was_narrowed(&c->ranks[r]))
            ddpi_findings_add(out, DDPI_FINDING_SLOW,
                              "unset OMP_PROC_BIND, OMP_PLACES and KMP_AFFINITY",
                              "%s of %s: a library has narrowed the cores from %d to %d",
                              ddpi_about_ranks(c, host, was_narrowed, ranks, sizeof ranks),
                              c->ranks[host].host, cpu->at_start, CPU_COUNT(&cpu->cores));
        else
            continue;
        return;
    }
}

static void check_quota(const ddpi_doctor_case *c, int host, ddpi_findings *out)
{
    const ddpi_doctor_record *record = &c->ranks[host];
    const int ranks = ddpi_about_ranks_of(c, host);
    const int threads = ranks * (record->cpu.threads > 0 ? record->cpu.threads : 1);
    char remedy[TEXT_BYTES];

    if (record->cpu.quota <= 0 || record->cpu.quota >= threads - 0.01)
        return;
    snprintf(remedy, sizeof remedy,
             "start at most %d ranks with one thread there, or raise the limit",
             record->cpu.quota < 1 ? 1 : (int)record->cpu.quota);
    ddpi_findings_add(out, DDPI_FINDING_SLOW, remedy,
                      "the control group of %s allows %.3g cores' time to %d thread%s",
                      record->host, record->cpu.quota, threads, threads == 1 ? "" : "s");
}

static void check_numa(const ddpi_doctor_case *c, int host, ddpi_findings *out)
{
    const ddpi_doctor_cpu *cpu = &c->ranks[host].cpu;

    if (cpu->numa_total < 2 || cpu->numa_used < 2 || ddpi_about_ranks_of(c, host) < cpu->numa_used)
        return;
    ddpi_findings_add(out, DDPI_FINDING_SLOW, "start with mpirun --map-by numa --bind-to numa",
                      "ranks of %s may wander between %d NUMA nodes, away from their memory",
                      c->ranks[host].host, cpu->numa_used);
}

/* All ranks on one of several hosts, or one host with more than another. */
static void check_spread(const ddpi_doctor_case *c, ddpi_findings *out)
{
    const int hosts = ddpi_about_hosts(c), wanted = c->ranks[0].launch.slurm_nodes;
    int most = 0, least = 0;

    if (wanted > hosts)
        ddpi_findings_add(out, DDPI_FINDING_SLOW,
                          "say --ntasks-per-node, or mpirun --map-by ppr:N:node",
                          "Slurm's job has %d nodes, but all %d ranks are on %d of them", wanted,
                          c->world, hosts);
    for (int r = 1; r < c->world; r++) {
        if (ddpi_about_ranks_of(c, r) > ddpi_about_ranks_of(c, most))
            most = r;
        if (ddpi_about_ranks_of(c, r) < ddpi_about_ranks_of(c, least))
            least = r;
    }
    const int many = ddpi_about_ranks_of(c, most), few = ddpi_about_ranks_of(c, least);
    if (many > few)
        ddpi_findings_add(out, DDPI_FINDING_SLOW,
                          "give each host as many slots as it has GPUs, or cores",
                          "%s has %d ranks and %s has %d: the fuller host is waited for",
                          c->ranks[most].host, many, c->ranks[least].host, few);
}

void ddpi_rules_binding(const ddpi_doctor_case *c, ddpi_findings *out)
{
    for (int r = 0; r < c->world; r++) {
        check_pairs(c, r, out);
        if (!ddpi_about_is_first(c, r))
            continue;
        check_crowd(c, r, out);
        check_binding(c, r, out);
    }
}

void ddpi_rules_cores(const ddpi_doctor_case *c, ddpi_findings *out)
{
    check_spread(c, out);
    ddpi_rules_binding(c, out);
    for (int r = 0; r < c->world; r++) {
        if (!ddpi_about_is_first(c, r))
            continue;
        check_total(c, r, out);
        check_threads(c, r, out);
        check_quota(c, r, out);
        check_numa(c, r, out);
    }
}
