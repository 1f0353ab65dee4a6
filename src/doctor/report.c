/* report.c - the doctor's tables and findings as text. Pure.
 *
 * Hosts, then their interfaces, then ranks where they differ in something worth a line, then what
 * was measured. Long tables are cut: a world of thousands needs the findings, not their rows. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ddp/memory.h"
#include "doctor/doctor.h"

enum { ROWS = 32, ROW_BYTES = 640, TEXT_BYTES = 96, TABLES = 6 };

typedef struct page {
    char *text;
    size_t bytes, used;
} page;

static void put(page *p, const char *fmt, ...) DDP_PRINTF(2, 3);
static void put(page *p, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    const int n = vsnprintf(p->text + p->used, p->bytes - p->used, fmt, args);
    va_end(args);
    if (n > 0)
        p->used += (size_t)n < p->bytes - p->used ? (size_t)n : p->bytes - p->used - 1;
}

static const char *limit_text(int64_t value, char text[TEXT_BYTES])
{
    if (value == INT64_MAX)
        snprintf(text, TEXT_BYTES, "no limit");
    else
        snprintf(text, TEXT_BYTES, "%lld", (long long)value);
    return text;
}

static const char *locked_text(int64_t value, char text[TEXT_BYTES])
{
    return value == INT64_MAX ? limit_text(value, text)
                              : ddpi_about_bytes((double)value, text, TEXT_BYTES);
}

static const char *seconds_text(double seconds, char text[TEXT_BYTES])
{
    if (seconds < 1e-3)
        snprintf(text, TEXT_BYTES, "%.1f us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(text, TEXT_BYTES, "%.2f ms", seconds * 1e3);
    else
        snprintf(text, TEXT_BYTES, "%.2f s", seconds);
    return text;
}

/* ---- tables ---- */

static void put_host(page *p, const ddpi_doctor_case *c, int host)
{
    const ddpi_doctor_record *record = &c->ranks[host];
    char ranks[TEXT_BYTES], cores[TEXT_BYTES], memory[TEXT_BYTES], shm[TEXT_BYTES],
        files[TEXT_BYTES], locked[TEXT_BYTES];
    cpu_set_t mask;

    ddpi_about_cores_of(c, host, &mask);
    ddpi_about_cores(&mask, cores, sizeof cores);
    ddpi_about_ranks(c, host, NULL, ranks, sizeof ranks);
    put(p, "  %-16.40s %-9s %-9s %5d %7d  %-9s %-9s %-9s %s\n", record->host,
        strchr(ranks, ' ') + 1, cores, record->cpu.online, record->cpu.threads,
        ddpi_about_bytes((double)record->memory.available, memory, sizeof memory),
        ddpi_about_bytes((double)record->memory.shm_free, shm, sizeof shm),
        limit_text(record->limits.files_hard, files), locked_text(record->limits.memlock, locked));
}

static void put_hosts(page *p, const ddpi_doctor_case *c)
{
    int rows = 0;

    put(p, "  %-16s %-9s %-9s %5s %7s  %-9s %-9s %-9s %s\n", "host", "ranks", "cores", "of",
        "threads", "memory", "/dev/shm", "files", "locked memory");
    for (int r = 0; r < c->world; r++)
        if (ddpi_about_is_first(c, r) && rows++ < ROWS)
            put_host(p, c, r);
    if (rows > ROWS)
        put(p, "  and %d more hosts\n", rows - ROWS);
}

static void put_ifaces(page *p, const ddpi_doctor_case *c)
{
    int rows = 0;

    put(p, "\n  %-16s %-10s %-28s %6s %7s\n", "host", "interface", "address", "MTU", "Mbit/s");
    for (int r = 0; r < c->world; r++) {
        const ddpi_doctor_net *net = &c->ranks[r].net;
        for (int i = 0; ddpi_about_is_first(c, r) && i < net->count; i++) {
            const ddpi_doctor_iface *iface = &net->list[i];
            char address[TEXT_BYTES], speed[16] = "-";
            if (iface->loopback || rows++ >= ROWS)
                continue;
            snprintf(address, sizeof address, "%s/%d%s", iface->address, iface->prefix,
                     iface->up ? "" : " (down)");
            if (iface->speed_mbit > 0)
                snprintf(speed, sizeof speed, "%d", iface->speed_mbit);
            put(p, "  %-16.40s %-10s %-28s %6d %7s\n", c->ranks[r].host, iface->name, address,
                iface->mtu, speed);
        }
    }
    if (rows > ROWS)
        put(p, "  and %d more\n", rows - ROWS);
}

static bool ranks_matter(const ddpi_doctor_case *c)
{
    for (int r = 0; r < c->world; r++)
        if (c->ranks[r].gpu.name[0] != '\0' ||
            !CPU_EQUAL(&c->ranks[r].cpu.cores, &c->ranks[0].cpu.cores))
            return true;
    return false;
}

static void put_ranks(page *p, const ddpi_doctor_case *c)
{
    if (!ranks_matter(c))
        return;
    put(p, "\n  %4s %-16s %-9s %7s  %s\n", "rank", "host", "cores", "threads", "GPU");
    for (int r = 0; r < c->world && r < ROWS; r++) {
        const ddpi_doctor_record *record = &c->ranks[r];
        char cores[TEXT_BYTES], gpu[2 * TEXT_BYTES] = "-";
        if (record->gpu.name[0] != '\0')
            snprintf(gpu, sizeof gpu, "%s %s %.8s, 1 of %d visible", record->gpu.name,
                     record->gpu.pci, record->gpu.uuid, record->gpu.visible);
        put(p, "  %4d %-16.40s %-9s %7d  %s\n", r, record->host,
            ddpi_about_cores(&record->cpu.cores, cores, sizeof cores), record->cpu.threads, gpu);
    }
    if (c->world > ROWS)
        put(p, "  and %d more ranks\n", c->world - ROWS);
}

static void put_links(page *p, const ddpi_doctor_case *c)
{
    const ddpi_doctor_links *links = &c->links;

    if (links->link_count == 0)
        return;
    put(p, "\n  %-28s %-10s %12s %12s\n", "messages", "by", "latency", "rate");
    for (int i = 0; i < links->link_count; i++) {
        const ddpi_doctor_link *link = &links->links[i];
        char name[3 * TEXT_BYTES], way[TEXT_BYTES], time[TEXT_BYTES];
        snprintf(name, sizeof name, "%d-%d %s%s%.40s", link->from, link->to,
                 link->inside ? "inside " : c->ranks[link->from].host, link->inside ? "" : "-",
                 link->inside ? c->ranks[link->from].host : c->ranks[link->to].host);
        snprintf(way, sizeof way, link->ways > 1 ? "%s +%d" : "%s",
                 link->ways > 0 ? link->iface
                 : link->inside ? "memory"
                                : "MPI",
                 link->ways - 1);
        put(p, "  %-28s %-10s %12s %7.3f GB/s\n", name, way, seconds_text(link->latency_s, time),
            link->rate / 1e9);
    }
    if (links->pair_count > links->link_count)
        put(p, "  %d more pairs were not measured\n", links->pair_count - links->link_count);
}

static void put_sums(page *p, const ddpi_doctor_case *c)
{
    const ddpi_doctor_links *links = &c->links;

    if (links->sum_count == 0)
        return;
    put(p, "\n  sums over all ranks by %s:", links->by);
    for (int i = 0; i < links->sum_count; i++) {
        char bytes[TEXT_BYTES], time[TEXT_BYTES];
        put(p, "%s %s %s%s", i > 0 ? "," : "",
            ddpi_about_bytes((double)links->sums[i].bytes, bytes, sizeof bytes),
            i == 2 ? "(all gradients) " : "", seconds_text(links->sums[i].seconds, time));
    }
    put(p, "\n");
    for (int i = 0; i < links->clock_count; i++) {
        char time[TEXT_BYTES];
        put(p, "  clock of %s: %+.6f s from that of %s (to %s)\n",
            c->ranks[links->clocks[i].rank].host, links->clocks[i].real_s, c->ranks[0].host,
            seconds_text(links->clocks[i].error_s, time));
    }
}

static void put_sides(page *p, const ddpi_doctor_case *c)
{
    int rows = 0;

    for (int r = 0; r < c->world && rows < ROWS; r++)
        if (c->ranks[r].net.side[0] != '\0' && ++rows > 0)
            put(p, "  side channel of %s: by %s\n", c->ranks[r].host, c->ranks[r].net.side);
}

static void put_head(page *p, const ddpi_doctor_case *c)
{
    const int hosts = ddpi_about_hosts(c);
    char a[TEXT_BYTES], b[TEXT_BYTES];

    put(p, "doctor: %d rank%s on %d host%s, %.1f s to start\n", c->world, c->world == 1 ? "" : "s",
        hosts, hosts == 1 ? "" : "s", c->ranks[0].launch.start_s);
    const ddpi_doctor_record *first = &c->ranks[0];
    put(p, "  ddp_train %s; %s; %s%s%s\n", DDP_VERSION, first->mpi,
        first->device[0] != '\0' ? first->device : first->cpu.model,
        first->cuda[0] != '\0' ? "; " : "", first->cuda);
    if (c->needs.parameters > 0)
        put(p, "  %s: %zu parameters", c->needs.model, c->needs.parameters);
    if (c->needs.memory_bytes > 0)
        put(p, "; a rank needs at least %s of memory, %s of it in /dev/shm",
            ddpi_about_bytes((double)c->needs.memory_bytes, a, sizeof a),
            ddpi_about_bytes((double)c->needs.shared_bytes, b, sizeof b));
    put(p, "%s", c->needs.parameters > 0 ? "\n" : "");
    put(p, "\n");
}

/* ---- findings ---- */

static void put_finding(page *p, const ddpi_finding *finding)
{
    static const char *const starts[] = {[DDPI_FINDING_FAILS] = "this will fail because ",
                                         [DDPI_FINDING_SLOW] = "this will be slow because ",
                                         [DDPI_FINDING_NOTE] = "note: "};

    put(p, "%s%s; do: %s\n", starts[finding->kind], finding->because, finding->remedy);
}

static void put_findings(page *p, const ddpi_findings *findings)
{
    for (int kind = DDPI_FINDING_FAILS; kind <= DDPI_FINDING_NOTE; kind++)
        for (int i = 0; i < findings->count; i++)
            if ((int)findings->list[i].kind == kind)
                put_finding(p, &findings->list[i]);
    if (findings->dropped > 0)
        put(p, "and %d more of this kind\n", findings->dropped);
    if (ddpi_findings_count(findings, DDPI_FINDING_FAILS) == 0)
        put(p, "nothing was found that would make this run fail\n");
}

ddp_status ddpi_doctor_report(const ddpi_doctor_case *c, const ddpi_findings *findings,
                              char **text_out)
{
    page p = {.bytes = (size_t)(TABLES * ROWS + DDPI_FINDINGS + ROWS) * ROW_BYTES};

    DDP_TRY(DDP_ALLOC(p.text, p.bytes));
    if (c->world > 0) {
        put_head(&p, c);
        put_hosts(&p, c);
        put_ifaces(&p, c);
        put_ranks(&p, c);
        put_links(&p, c);
        put_sums(&p, c);
        put_sides(&p, c);
        put(&p, "\n");
    }
    put_findings(&p, findings);
    *text_out = p.text;
    return DDP_OK;
}
