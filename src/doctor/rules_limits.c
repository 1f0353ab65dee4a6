/* rules_limits.c - limits of files, threads, locked and shared memory, and memory itself. Pure
 * functions of records. */
#include <stdio.h>
#include <string.h>

#include "doctor/findings.h"

enum { TEXT_BYTES = 160, SPARE_FILES = 4, FEW_FILES = 1024, THREADS_BESIDE = 8 };
#define MIB            ((int64_t)1 << 20)
#define MEMLOCK_BYTES  (64 * MIB)
#define NCCL_SHM_BYTES (16 * MIB) /* of each rank, at least */

static const char *bytes_of(double bytes, char text[TEXT_BYTES])
{
    return ddpi_about_bytes(bytes, text, TEXT_BYTES);
}

/* Of several ranks of a host with one limit, the first has the word. */
static bool was_told(const ddpi_doctor_case *c, int r)
{
    for (int k = 0; k < r; k++)
        if (strcmp(c->ranks[k].host, c->ranks[r].host) == 0 &&
            c->ranks[k].limits.files_hard == c->ranks[r].limits.files_hard)
            return true;
    return false;
}

/* Connections to ranks elsewhere, a log and files of a checkpoint come on top of what is open by
 * now. */
static void check_files(const ddpi_doctor_case *c, int r, ddpi_findings *out)
{
    const ddpi_doctor_limits *limits = &c->ranks[r].limits;
    const int elsewhere = c->world - ddpi_about_ranks_of(c, r);
    const int64_t need = limits->files_open + SPARE_FILES + 2 * (int64_t)elsewhere;
    char remedy[TEXT_BYTES];

    if (limits->files_hard <= 0 || limits->files_hard >= FEW_FILES || was_told(c, r))
        return;
    snprintf(remedy, sizeof remedy,
             "raise the hard limit there (ulimit -Hn %d, or LimitNOFILE of the service that starts "
             "ranks)",
             FEW_FILES);
    if (limits->files_hard < need)
        ddpi_findings_add(out, DDPI_FINDING_FAILS, remedy,
                          "rank %d on %s may open %lld files and needs about %lld", r,
                          c->ranks[r].host, (long long)limits->files_hard, (long long)need);
    else
        ddpi_findings_add(out, DDPI_FINDING_NOTE, remedy,
                          "rank %d on %s may open %lld files, and has %lld open: more ranks need "
                          "more connections",
                          r, c->ranks[r].host, (long long)limits->files_hard,
                          (long long)limits->files_open);
}

static void check_threads(const ddpi_doctor_case *c, int r, ddpi_findings *out)
{
    const ddpi_doctor_record *record = &c->ranks[r];
    const int64_t need =
        ddpi_about_ranks_of(c, r) * (int64_t)(record->cpu.threads + THREADS_BESIDE);

    if (!ddpi_about_is_first(c, r) || record->limits.files_hard == 0 ||
        record->limits.processes >= need)
        return;
    ddpi_findings_add(out, DDPI_FINDING_FAILS,
                      "raise it (ulimit -u, or the container's pids limit)",
                      "ranks on %s may start %lld more threads and need about %lld", record->host,
                      (long long)record->limits.processes, (long long)need);
}

/* InfiniBand registers its buffers; Slurm's and systemd's daemons hand on limits of their own. */
static void check_memlock(const ddpi_doctor_case *c, int r, ddpi_findings *out)
{
    const ddpi_doctor_limits *limits = &c->ranks[r].limits;
    char text[TEXT_BYTES];

    if (!limits->infiniband || limits->memlock >= MEMLOCK_BYTES || ddpi_about_hosts(c) == 1)
        return;
    ddpi_findings_add(
        out, DDPI_FINDING_FAILS,
        "set LimitMEMLOCK=infinity for sshd, slurmd or the container (limits.conf does "
        "not reach them), or keep to TCP",
        "rank %d on %s may lock %s of memory, and InfiniBand needs more", r, c->ranks[r].host,
        bytes_of((double)limits->memlock, text));
}

void ddpi_rules_limits(const ddpi_doctor_case *c, ddpi_findings *out)
{
    for (int r = 0; r < c->world; r++) {
        check_files(c, r, out);
        check_threads(c, r, out);
        check_memlock(c, r, out);
    }
}

/* ---- memory ---- */

static void check_shared(const ddpi_doctor_case *c, int host, ddpi_findings *out)
{
    const ddpi_doctor_memory *memory = &c->ranks[host].memory;
    const int ranks = ddpi_about_ranks_of(c, host);
    const int64_t need = ranks * (int64_t)c->needs.shared_bytes;
    char a[TEXT_BYTES], b[TEXT_BYTES];

    if (ranks < 2 || memory->shm_total == 0)
        return;
    if (c->needs.nccl && memory->shm_free < ranks * NCCL_SHM_BYTES)
        ddpi_findings_add(out, DDPI_FINDING_FAILS, "start the container with --shm-size=2g",
                          "NCCL needs about %s of /dev/shm on %s, and %s are free",
                          bytes_of((double)(ranks * NCCL_SHM_BYTES), a), c->ranks[host].host,
                          bytes_of((double)memory->shm_free, b));
    else if (!c->needs.nccl && memory->shm_free < need)
        ddpi_findings_add(
            out, DDPI_FINDING_SLOW,
            "start the container with a larger --shm-size, or mount a larger /dev/shm",
            "%d ranks share %s through /dev/shm on %s, where %s are free: they will "
            "exchange messages instead",
            ranks, bytes_of((double)need, a), c->ranks[host].host,
            bytes_of((double)memory->shm_free, b));
}

static void check_memory(const ddpi_doctor_case *c, int host, ddpi_findings *out)
{
    const ddpi_doctor_memory *memory = &c->ranks[host].memory;
    const int ranks = ddpi_about_ranks_of(c, host);
    const double need = (double)ranks * (double)c->needs.memory_bytes;
    char a[TEXT_BYTES], b[TEXT_BYTES];

    if (memory->available == 0 || need <= (double)memory->available)
        return;
    ddpi_findings_add(
        out, DDPI_FINDING_FAILS,
        "take a smaller --batch-size, --accumulate, --recompute segments, or fewer ranks "
        "on a host",
        "%d rank%s on %s need at least %s of memory, and %s are available%s", ranks,
        ranks == 1 ? "" : "s", c->ranks[host].host, bytes_of(need, a),
        bytes_of((double)memory->available, b), memory->limit > 0 ? " in its control group" : "");
}

static void check_huge(const ddpi_doctor_case *c, int host, ddpi_findings *out)
{
    if (strcmp(c->ranks[host].memory.huge, "never") == 0)
        ddpi_findings_add(out, DDPI_FINDING_SLOW,
                          "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled",
                          "%s gives no huge pages", c->ranks[host].host);
}

void ddpi_rules_memory(const ddpi_doctor_case *c, ddpi_findings *out)
{
    for (int r = 0; r < c->world; r++) {
        if (!ddpi_about_is_first(c, r))
            continue;
        check_shared(c, r, out);
        check_memory(c, r, out);
        check_huge(c, r, out);
    }
}
