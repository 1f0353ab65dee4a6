/* about.c - questions about gathered records that rules and the report share. Pure. */
#include <stdio.h>
#include <string.h>

#include "doctor/findings.h"

/* ---- hosts ---- */

/* Containers may share a host's name, and ranks that share no memory its hardware. */
int ddpi_about_first(const ddpi_doctor_case *c, int rank)
{
    for (int r = 0; r < rank; r++)
        if (strcmp(c->ranks[r].host, c->ranks[rank].host) == 0)
            return r;
    return rank;
}

bool ddpi_about_is_first(const ddpi_doctor_case *c, int rank)
{
    return ddpi_about_first(c, rank) == rank;
}

int ddpi_about_hosts(const ddpi_doctor_case *c)
{
    int count = 0;

    for (int r = 0; r < c->world; r++)
        count += ddpi_about_is_first(c, r);
    return count;
}

int ddpi_about_ranks_of(const ddpi_doctor_case *c, int rank)
{
    int count = 0;

    for (int r = 0; r < c->world; r++)
        count += strcmp(c->ranks[r].host, c->ranks[rank].host) == 0;
    return count;
}

void ddpi_about_cores_of(const ddpi_doctor_case *c, int rank, cpu_set_t *cores_out)
{
    CPU_ZERO(cores_out);
    for (int r = 0; r < c->world; r++)
        if (strcmp(c->ranks[r].host, c->ranks[rank].host) == 0)
            CPU_OR(cores_out, cores_out, &c->ranks[r].cpu.cores);
}

/* ---- words ---- */

/* Appends "first" or "first-last" to a list. */
static void add_run(char *text, size_t text_bytes, int first, int last)
{
    const size_t used = strlen(text);
    const char *comma = used > 0 ? "," : "";

    if (last > first)
        snprintf(text + used, text_bytes - used, "%s%d-%d", comma, first, last);
    else
        snprintf(text + used, text_bytes - used, "%s%d", comma, first);
}

char *ddpi_about_cores(const cpu_set_t *cores, char *text, size_t text_bytes)
{
    text[0] = '\0';
    for (int i = 0; i < CPU_SETSIZE; i++) {
        const int first = i;
        if (!CPU_ISSET((size_t)i, cores))
            continue;
        while (i + 1 < CPU_SETSIZE && CPU_ISSET((size_t)i + 1, cores))
            i++;
        add_run(text, text_bytes, first, i);
    }
    return text;
}

static bool counts(const ddpi_doctor_case *c, int host, int r,
                   bool (*keep)(const ddpi_doctor_record *record))
{
    return r < c->world && strcmp(c->ranks[r].host, c->ranks[host].host) == 0 &&
           (keep == NULL || keep(&c->ranks[r]));
}

char *ddpi_about_ranks(const ddpi_doctor_case *c, int rank,
                       bool (*keep)(const ddpi_doctor_record *record), char *text,
                       size_t text_bytes)
{
    char list[128] = "";
    int count = 0;

    for (int r = 0; r < c->world; r++) {
        const int first = r;
        if (!counts(c, rank, r, keep))
            continue;
        while (counts(c, rank, r + 1, keep))
            r++;
        count += r - first + 1;
        add_run(list, sizeof list, first, r);
    }
    snprintf(text, text_bytes, "rank%s %s", count == 1 ? "" : "s", list);
    return text;
}

char *ddpi_about_bytes(double bytes, char *text, size_t text_bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;

    while (bytes >= 1024 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, text_bytes, "%.*f %s", unit > 0 && bytes < 10 ? 1 : 0, bytes, units[unit]);
    return text;
}

const char *ddpi_about_variable(const ddpi_doctor_record *record, const char *name,
                                size_t *bytes_out)
{
    const size_t bytes = strlen(name);

    for (const char *at = record->env; *at != '\0'; at += strcspn(at, "\n") + 1) {
        if (strncmp(at, name, bytes) != 0 || at[bytes] != '=')
            continue;
        *bytes_out = strcspn(at + bytes + 1, "\n");
        return at + bytes + 1;
    }
    return NULL;
}

/* ---- networks ---- */

/* Each must take the other for near, or the answer goes another way. */
bool ddpi_about_same_subnet(const ddpi_doctor_iface *a, const ddpi_doctor_iface *b)
{
    const int bits = a->prefix > b->prefix ? a->prefix : b->prefix;

    if (a->family != b->family)
        return false;
    for (int i = 0; i < bits; i++) {
        const int mask = 0x80 >> (i % 8);
        if (((a->bytes[i / 8] ^ b->bytes[i / 8]) & mask) != 0)
            return false;
    }
    return true;
}

bool ddpi_about_reaches(const ddpi_doctor_iface *iface)
{
    return iface->up && !iface->loopback && !iface->bridge;
}

char *ddpi_about_subnet(const ddpi_doctor_iface *iface, char *text, size_t text_bytes)
{
    uint8_t bytes[4];

    if (iface->family != 4) {
        snprintf(text, text_bytes, "%s", iface->address);
        return text;
    }
    for (int i = 0; i < 4; i++) {
        const int bits = iface->prefix - 8 * i;
        const int mask = bits >= 8 ? 0xff : bits <= 0 ? 0 : 0xff & (0xff << (8 - bits));
        bytes[i] = (uint8_t)(iface->bytes[i] & mask);
    }
    snprintf(text, text_bytes, "%u.%u.%u.%u/%d", bytes[0], bytes[1], bytes[2], bytes[3],
             (int)iface->prefix);
    return text;
}

static bool is_in_reach(const ddpi_doctor_net *net, const ddpi_doctor_iface *iface)
{
    for (int i = 0; i < net->count; i++)
        if (ddpi_about_reaches(&net->list[i]) && ddpi_about_same_subnet(&net->list[i], iface))
            return true;
    return false;
}

const ddpi_doctor_iface *ddpi_about_common(const ddpi_doctor_case *c, int rank)
{
    const ddpi_doctor_net *net = &c->ranks[rank].net;

    for (int i = 0; i < net->count; i++) {
        bool common = ddpi_about_reaches(&net->list[i]);
        for (int r = 0; r < c->world && common; r++)
            common = is_in_reach(&c->ranks[r].net, &net->list[i]);
        if (common)
            return &net->list[i];
    }
    return NULL;
}
