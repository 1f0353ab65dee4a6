/* rules_nccl.c - GPUs, and the variables by which NCCL finds its way between hosts. Pure functions
 * of records. */
#include <stdio.h>
#include <string.h>

#include "doctor/findings.h"

enum { TEXT_BYTES = 160 };
#define IFNAME "NCCL_SOCKET_IFNAME"

static bool any_reaches(const ddpi_doctor_net *net)
{
    for (int i = 0; i < net->count; i++)
        if (ddpi_about_reaches(&net->list[i]))
            return true;
    return false;
}

static bool is_listed(const char *list, size_t bytes, const char *word)
{
    const size_t length = strlen(word);

    for (size_t i = 0; i + length <= bytes; i++)
        if ((i == 0 || list[i - 1] == ',') && strncmp(list + i, word, length) == 0)
            return true;
    return false;
}

/* "eth0" also means eth0.100 and eth01. How many interfaces are meant, and the first. */
static int count_meant(const ddpi_doctor_net *net, const char *word, size_t bytes,
                       const char **other)
{
    int count = 0;

    for (int i = 0; i < net->count; i++) {
        const char *name = net->list[i].name;
        if (strncmp(name, word, bytes) != 0)
            continue;
        count += count == 0 || strcmp(name, *other) != 0;
        *other = name;
    }
    return count;
}

static void check_word(const ddpi_doctor_record *record, const char *word, size_t bytes,
                       ddpi_findings *out)
{
    const char *last = "";
    char remedy[TEXT_BYTES];
    const int count = count_meant(&record->net, word, bytes, &last);

    if (bytes >= 2 && strncmp(word, "lo", bytes) == 0)
        ddpi_findings_add(out, DDPI_FINDING_FAILS,
                          "name an interface that leads to the other hosts, or unset it",
                          IFNAME " is lo on %s, and there are other hosts", record->host);
    else if (count == 0)
        ddpi_findings_add(
            out, DDPI_FINDING_FAILS, "set it on each host to that host's interface, or unset it",
            IFNAME " names %.*s, which %s does not have", (int)bytes, word, record->host);
    else if (count > 1) {
        snprintf(remedy, sizeof remedy, "say " IFNAME "==%.*s, which means that one only",
                 (int)bytes, word);
        ddpi_findings_add(out, DDPI_FINDING_NOTE, remedy,
                          IFNAME "=%.*s means every interface of %s that begins so, %s among them",
                          (int)bytes, word, record->host, last);
    }
}

static void check_ifname(const ddpi_doctor_record *record, ddpi_findings *out)
{
    size_t left;
    const char *at = ddpi_about_variable(record, IFNAME, &left);

    if (at == NULL || left == 0)
        return;
    if (at[0] == '^' && !is_listed(at + 1, left - 1, "lo"))
        ddpi_findings_add(out, DDPI_FINDING_FAILS, "say " IFNAME "=^docker,lo, or unset it",
                          IFNAME "=%.*s of %s excludes some interfaces, but not lo, which NCCL may "
                                 "choose then",
                          (int)left, at, record->host);
    if (at[0] == '^' || at[0] == '=')
        return;
    while (left > 0) {
        size_t bytes = 0;
        while (bytes < left && at[bytes] != ',')
            bytes++;
        if (bytes > 0)
            check_word(record, at, bytes, out);
        at += bytes < left ? bytes + 1 : bytes;
        left -= bytes < left ? bytes + 1 : bytes;
    }
}

static void check_gpus(const ddpi_doctor_case *c, int host, ddpi_findings *out)
{
    const ddpi_doctor_record *record = &c->ranks[host];

    for (int r = 0; r < host; r++)
        if (ddpi_about_is_first(c, r) && c->ranks[r].gpu.visible > 1 && record->gpu.visible > 1 &&
            c->ranks[r].gpu.visible != record->gpu.visible) {
            ddpi_findings_add(out, DDPI_FINDING_NOTE, "give each host as many ranks as it has GPUs",
                              "%s shows its ranks %d GPUs and %s shows %d", c->ranks[r].host,
                              c->ranks[r].gpu.visible, record->host, record->gpu.visible);
            return;
        }
    if (c->needs.nccl && record->gpu.visible == 1 && ddpi_about_ranks_of(c, host) > 1)
        ddpi_findings_add(
            out, DDPI_FINDING_NOTE,
            "start with --gpus-per-node=N --gpu-bind=none instead of --gpus-per-task=1",
            "each rank of %s sees one GPU only: NCCL may then not copy from one GPU "
            "to the other",
            record->host);
    else if (record->gpu.visible > 0 && !c->needs.cuda)
        ddpi_findings_add(out, DDPI_FINDING_SLOW, "say --device cuda",
                          "%s has %d GPU%s, but the ranks compute on CPUs", record->host,
                          record->gpu.visible, record->gpu.visible == 1 ? "" : "s");
}

void ddpi_rules_nccl(const ddpi_doctor_case *c, ddpi_findings *out)
{
    const int hosts = ddpi_about_hosts(c);

    for (int r = 0; r < c->world; r++) {
        const ddpi_doctor_record *record = &c->ranks[r];
        size_t bytes;
        if (!ddpi_about_is_first(c, r))
            continue;
        check_gpus(c, r, out);
        if (!c->needs.nccl)
            continue;
        if (hosts > 1)
            check_ifname(record, out);
        else if (!any_reaches(&record->net) && ddpi_about_variable(record, IFNAME, &bytes) == NULL)
            ddpi_findings_add(out, DDPI_FINDING_FAILS, "export " IFNAME "=lo",
                              "%s has no interface but lo, and NCCL waits for one", record->host);
    }
}
