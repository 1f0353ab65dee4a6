/* watch.c - a limit for MPI's own start, which has none: with an interface that leads nowhere, MPI
 * tries to connect without end. Then each host tells what it could have known before. */
#include <stdio.h>

#include "ddp/memory.h"
#include "ddp/thread.h"
#include "doctor/doctor.h"

struct ddpi_doctor_watch {
    ddp_thread thread;
    ddp_monitor monitor;
    int64_t until_ns;
    double limit_s;
    bool speaks;
    bool over; /* under the monitor */
};

static void say_interfaces(const ddpi_doctor_net *net)
{
    for (int i = 0; i < net->count; i++)
        if (!net->list[i].loopback)
            fprintf(stderr, "ddp_train:   %-15s %s/%d%s%s\n", net->list[i].name,
                    net->list[i].address, net->list[i].prefix, net->list[i].up ? "" : ", down",
                    net->list[i].bridge ? ", leads to containers of this host only" : "");
}

/* The first that may lead to other hosts. */
static void guess_subnet(const ddpi_doctor_net *net, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "SUBNET/BITS");
    for (int i = 0; i < net->count; i++)
        if (ddpi_about_reaches(&net->list[i]) && net->list[i].family == 4) {
            ddpi_about_subnet(&net->list[i], text, text_bytes);
            return;
        }
}

static void give_up(const ddpi_doctor_watch *watch)
{
    ddpi_doctor_net net = {.count = 0};
    char subnet[64];

    if (watch->speaks) {
        ddpi_doctor_look_at_net(&net);
        guess_subnet(&net, subnet, sizeof subnet);
        fprintf(stderr,
                "ddp_train: this will fail because MPI has not connected the ranks within %.0f s; "
                "do: see that no firewall is between the hosts, and say mpirun --mca "
                "btl_tcp_if_include %s, if that is the network between them. Interfaces of this "
                "host:\n",
                watch->limit_s, subnet);
        say_interfaces(&net);
    }
    (void)fflush(stderr);
    ddp_vanish(1);
}

static void *wait_for_start(void *arg)
{
    ddpi_doctor_watch *watch = arg;

    ddp_monitor_lock(&watch->monitor);
    while (!watch->over && ddp_monitor_wait(&watch->monitor, watch->until_ns)) {
    }
    const bool over = watch->over;
    ddp_monitor_unlock(&watch->monitor);
    if (!over)
        give_up(watch);
    return NULL;
}

ddp_status ddpi_doctor_watch_start(double limit_s, bool speaks, ddpi_doctor_watch **watch_out)
{
    ddpi_doctor_watch *watch;

    DDP_TRY(DDP_ALLOC(watch, 1));
    watch->limit_s = limit_s;
    watch->speaks = speaks;
    watch->until_ns = ddp_deadline_after_ms((int64_t)(limit_s * 1000));
    ddp_status st = ddp_monitor_init(&watch->monitor);
    if (st == DDP_OK)
        st = ddp_thread_start(&watch->thread, "ddp-start", wait_for_start, watch);
    if (st != DDP_OK) {
        ddp_free(watch);
        return st;
    }
    *watch_out = watch;
    return DDP_OK;
}

void ddpi_doctor_watch_stop(ddpi_doctor_watch *watch)
{
    if (watch == NULL)
        return;
    ddp_monitor_lock(&watch->monitor);
    watch->over = true;
    ddp_monitor_wake_all(&watch->monitor);
    ddp_monitor_unlock(&watch->monitor);
    ddp_thread_join(&watch->thread);
    ddp_monitor_destroy(&watch->monitor);
    ddp_free(watch);
}
