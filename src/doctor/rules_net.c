/* rules_net.c - interfaces and names that make hosts miss each other. Pure functions of records. */
#include <stdio.h>
#include <string.h>

#include "doctor/findings.h"

enum { TEXT_BYTES = 160 };
#define INCLUDE      "OMPI_MCA_btl_tcp_if_include"
#define SLOW_NAME_S  0.5
#define SLOW_START_S 10.0

/* "mpirun --mca btl_tcp_if_include 10.1.0.0/24", with what is common to all hosts. */
static const char *say_subnet(const ddpi_doctor_case *c, int rank, char remedy[TEXT_BYTES])
{
    const ddpi_doctor_iface *common = ddpi_about_common(c, rank);
    char subnet[64] = "SUBNET/BITS";

    if (common != NULL)
        ddpi_about_subnet(common, subnet, sizeof subnet);
    snprintf(remedy, TEXT_BYTES, "say mpirun --mca btl_tcp_if_include %s", subnet);
    return remedy;
}

static bool has_subnet_in_common(const ddpi_doctor_net *a, const ddpi_doctor_net *b)
{
    for (int i = 0; i < a->count; i++)
        for (int k = 0; k < b->count; k++)
            if (ddpi_about_reaches(&a->list[i]) && ddpi_about_reaches(&b->list[k]) &&
                ddpi_about_same_subnet(&a->list[i], &b->list[k]))
                return true;
    return false;
}

static void check_subnets(const ddpi_doctor_case *c, int host, ddpi_findings *out)
{
    for (int r = 0; r < host; r++) {
        if (!ddpi_about_is_first(c, r) ||
            has_subnet_in_common(&c->ranks[r].net, &c->ranks[host].net))
            continue;
        ddpi_findings_add(
            out, DDPI_FINDING_SLOW,
            "connect them to one network; where both have several, name the right one "
            "by mpirun --mca btl_tcp_if_include",
            "%s and %s have no subnet in common: what is between them is routed, if "
            "it gets there at all",
            c->ranks[r].host, c->ranks[host].host);
        return;
    }
}

/* docker0 has the same address everywhere: who connects there reaches itself. */
static void check_bridges(const ddpi_doctor_case *c, int host, ddpi_findings *out)
{
    const ddpi_doctor_net *net = &c->ranks[host].net;
    char remedy[TEXT_BYTES];

    for (int i = 0; i < net->count; i++)
        for (int r = 0; r < host; r++)
            for (int k = 0; k < c->ranks[r].net.count; k++) {
                const ddpi_doctor_iface *a = &net->list[i], *b = &c->ranks[r].net.list[k];
                if (!ddpi_about_is_first(c, r) || a->loopback || !a->up || !b->up ||
                    strcmp(a->address, b->address) != 0)
                    continue;
                ddpi_findings_add(out, DDPI_FINDING_NOTE, say_subnet(c, host, remedy),
                                  "%s of %s and %s of %s have the same address %s: who connects "
                                  "there reaches itself, and MPI may hang at the start",
                                  b->name, c->ranks[r].host, a->name, c->ranks[host].host,
                                  a->address);
                return;
            }
}

/* Neither a network with others in it, nor one of several with the same address, which are told
 * apart by check_bridges(). */
static bool only_here(const ddpi_doctor_case *c, int host, const ddpi_doctor_iface *iface)
{
    for (int r = 0; r < c->world; r++)
        for (int i = 0; i < c->ranks[r].net.count; i++) {
            const ddpi_doctor_iface *other = &c->ranks[r].net.list[i];
            if (strcmp(c->ranks[r].host, c->ranks[host].host) != 0 && !other->loopback &&
                other->up && ddpi_about_same_subnet(other, iface))
                return false;
        }
    return true;
}

/* A bridge inside one host is a candidate for MPI all the same. */
static void check_inner(const ddpi_doctor_case *c, int host, ddpi_findings *out)
{
    const ddpi_doctor_net *net = &c->ranks[host].net;
    char remedy[TEXT_BYTES];

    for (int i = 0; i < net->count; i++) {
        const ddpi_doctor_iface *iface = &net->list[i];
        if (iface->up && iface->bridge && only_here(c, host, iface))
            ddpi_findings_add(out, DDPI_FINDING_NOTE, say_subnet(c, host, remedy),
                              "%s of %s (%s) leads to no other host, but MPI may try it",
                              iface->name, c->ranks[host].host, iface->address);
    }
}

/* Two ways into one subnet: which one is taken is up to the routes, which may differ by host. */
static void check_twice(const ddpi_doctor_case *c, int host, ddpi_findings *out)
{
    const ddpi_doctor_net *net = &c->ranks[host].net;
    char subnet[64];

    for (int i = 0; i < net->count; i++)
        for (int k = 0; k < i; k++) {
            const ddpi_doctor_iface *a = &net->list[k], *b = &net->list[i];
            if (a->family != 4 || !ddpi_about_reaches(a) || !ddpi_about_reaches(b) ||
                strcmp(a->name, b->name) == 0 || !ddpi_about_same_subnet(a, b))
                continue;
            ddpi_findings_add(out, DDPI_FINDING_NOTE,
                              "name one by mpirun --mca btl_tcp_if_include and, for NCCL, "
                              "NCCL_SOCKET_IFNAME==NAME",
                              "%s and %s of %s are both in %s: traffic may leave by the one that "
                              "was not meant",
                              a->name, b->name, c->ranks[host].host,
                              ddpi_about_subnet(a, subnet, sizeof subnet));
        }
}

static void check_side(const ddpi_doctor_case *c, ddpi_findings *out)
{
    for (int r = 1; r < c->world; r++)
        if (c->ranks[r].net.side_missing) {
            ddpi_findings_add(out, DDPI_FINDING_NOTE,
                              "let TCP connections of all ports pass between the hosts",
                              "%s has no connection to %s beside MPI: the death of a rank is "
                              "noticed later there",
                              c->ranks[r].host, c->ranks[0].host);
            return;
        }
}

/* ---- interfaces that variables name ---- */

static bool has_iface(const ddpi_doctor_net *net, const char *name, size_t bytes)
{
    for (int i = 0; i < net->count; i++)
        if (strlen(net->list[i].name) == bytes && strncmp(net->list[i].name, name, bytes) == 0)
            return true;
    return false;
}

static void check_list(const ddpi_doctor_case *c, int host, const char *variable,
                       ddpi_findings *out)
{
    const ddpi_doctor_record *record = &c->ranks[host];
    size_t left;
    const char *at = ddpi_about_variable(record, variable, &left);
    char remedy[TEXT_BYTES];

    while (at != NULL && left > 0) {
        size_t bytes = 0;
        while (bytes < left && at[bytes] != ',')
            bytes++;
        /* A subnet holds on every host. */
        if (bytes > 0 && memchr(at, '/', bytes) == NULL && !has_iface(&record->net, at, bytes))
            ddpi_findings_add(out, DDPI_FINDING_FAILS, say_subnet(c, host, remedy),
                              "%s names %.*s, which %s does not have (with an address)", variable,
                              (int)bytes, at, record->host);
        at += bytes < left ? bytes + 1 : bytes;
        left -= bytes < left ? bytes + 1 : bytes;
    }
}

void ddpi_rules_net(const ddpi_doctor_case *c, ddpi_findings *out)
{
    if (ddpi_about_hosts(c) < 2)
        return;
    check_side(c, out);
    for (int r = 0; r < c->world; r++) {
        size_t bytes;
        if (!ddpi_about_is_first(c, r))
            continue;
        check_subnets(c, r, out);
        check_list(c, r, INCLUDE, out);
        /* Whoever has named the interfaces is past these. */
        if (ddpi_about_variable(&c->ranks[r], INCLUDE, &bytes) != NULL)
            continue;
        check_bridges(c, r, out);
        check_inner(c, r, out);
        check_twice(c, r, out);
    }
}

/* ---- names ---- */

static void check_name(const char *host, const char *name, double seconds, bool ok,
                       ddpi_findings *out)
{
    if (seconds >= SLOW_NAME_S)
        ddpi_findings_add(out, DDPI_FINDING_SLOW, "put it into /etc/hosts",
                          "%s took %.1f s to look up %s%s, and does so at every start", host,
                          seconds, name, ok ? "" : " in vain");
    else if (!ok && seconds > 0)
        ddpi_findings_add(out, DDPI_FINDING_NOTE,
                          "put it into /etc/hosts, or export HWLOC_COMPONENTS=-gl before mpirun",
                          "%s does not resolve %s: MPI's topology library may wait for X displays "
                          "at every start",
                          host, name);
}

void ddpi_rules_names(const ddpi_doctor_case *c, ddpi_findings *out)
{
    for (int r = 0; r < c->world; r++) {
        const ddpi_doctor_net *net = &c->ranks[r].net;
        if (!ddpi_about_is_first(c, r))
            continue;
        check_name(c->ranks[r].host, "localhost", net->localhost_s, net->localhost_ok, out);
        check_name(c->ranks[r].host, "its own name", net->own_name_s, net->own_name_ok, out);
    }
    if (c->ranks[0].launch.start_s > SLOW_START_S)
        ddpi_findings_add(out, DDPI_FINDING_SLOW,
                          "export HWLOC_COMPONENTS=-gl before mpirun, and name MPI's interface by "
                          "--mca btl_tcp_if_include",
                          "it took %.0f s until all ranks had met", c->ranks[0].launch.start_s);
}
