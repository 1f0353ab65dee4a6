/* rules_links.c - what the measured messages and clocks say. Pure functions of measurements. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "doctor/findings.h"

#define SLOW_SHARE   0.4 /* of what the interface says, or of the best link of its kind */
#define CLOCKS_APART 1.0 /* seconds */
#define LARGE_ENOUGH ((int64_t)1 << 20)

static const ddpi_doctor_iface *find_iface(const ddpi_doctor_net *net, const char *name)
{
    for (int i = 0; i < net->count; i++)
        if (strcmp(net->list[i].name, name) == 0)
            return &net->list[i];
    return NULL;
}

static void check_speed(const ddpi_doctor_case *c, const ddpi_doctor_link *link, ddpi_findings *out)
{
    const ddpi_doctor_iface *iface = find_iface(&c->ranks[link->from].net, link->iface);
    const double line = iface != NULL ? (double)iface->speed_mbit * 1e6 / 8 : 0;

    if (link->inside || link->ways > 1 || link->bytes < LARGE_ENOUGH || line <= 0 ||
        link->rate >= SLOW_SHARE * line)
        return;
    ddpi_findings_add(out, DDPI_FINDING_SLOW,
                      "look for other traffic, a limit on the way, or MPI's interface",
                      "messages from %s to %s pass at %.3g GB/s, where %s could carry %.3g",
                      c->ranks[link->from].host, c->ranks[link->to].host, link->rate / 1e9,
                      link->iface, line / 1e9);
}

/* Between hosts, the best of those that were measured. */
static double best_rate(const ddpi_doctor_links *links)
{
    double best = 0;

    for (int i = 0; i < links->link_count; i++)
        if (!links->links[i].inside && links->links[i].rate > best)
            best = links->links[i].rate;
    return best;
}

static void check_share(const ddpi_doctor_case *c, const ddpi_doctor_link *link, double best,
                        ddpi_findings *out)
{
    if (link->inside || link->rate >= SLOW_SHARE * best)
        return;
    ddpi_findings_add(out, DDPI_FINDING_SLOW, "check that link, or leave that host out",
                      "messages from %s to %s pass at %.3g GB/s, between other hosts at up to %.3g",
                      c->ranks[link->from].host, c->ranks[link->to].host, link->rate / 1e9,
                      best / 1e9);
}

static void check_way(const ddpi_doctor_case *c, const ddpi_doctor_link *link, ddpi_findings *out)
{
    const ddpi_doctor_iface *iface = find_iface(&c->ranks[link->from].net, link->iface);

    if (iface == NULL)
        return;
    if (link->inside)
        ddpi_findings_add(
            out, DDPI_FINDING_SLOW, "let MPI use shared memory: no OMPI_MCA_btl without vader (sm)",
            "messages between ranks of %s go through %s", c->ranks[link->from].host, iface->name);
    for (int i = 0; i < c->ranks[link->from].net.count && !link->inside; i++) {
        const ddpi_doctor_iface *other = &c->ranks[link->from].net.list[i];
        if (ddpi_about_reaches(other) && other->speed_mbit > 2 * iface->speed_mbit &&
            iface->speed_mbit > 0)
            ddpi_findings_add(out, DDPI_FINDING_SLOW, "name it by mpirun --mca btl_tcp_if_include",
                              "messages from %s leave by %s (%d Mbit/s), though it has %s (%d)",
                              c->ranks[link->from].host, iface->name, iface->speed_mbit,
                              other->name, other->speed_mbit);
    }
}

static void check_clocks(const ddpi_doctor_case *c, ddpi_findings *out)
{
    for (int i = 0; i < c->links.clock_count; i++) {
        const ddpi_doctor_clock *clock = &c->links.clocks[i];
        if (fabs(clock->real_s) > CLOCKS_APART)
            ddpi_findings_add(out, DDPI_FINDING_NOTE, "run a time service (chrony)",
                              "the clock of %s is %.1f s %s that of %s: times in logs do not fit "
                              "together",
                              c->ranks[clock->rank].host, fabs(clock->real_s),
                              clock->real_s > 0 ? "ahead of" : "behind", c->ranks[0].host);
    }
}

void ddpi_rules_links(const ddpi_doctor_case *c, ddpi_findings *out)
{
    const double best = best_rate(&c->links);

    for (int i = 0; i < c->links.link_count; i++) {
        check_way(c, &c->links.links[i], out);
        check_speed(c, &c->links.links[i], out);
        check_share(c, &c->links.links[i], best, out);
    }
    check_clocks(c, out);
}
