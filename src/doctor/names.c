/* names.c - how long it takes to look up this host's own names. MPI's launcher and its libraries
 * do that at every start, and where nobody answers they wait. */
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ddp/memory.h"
#include "ddp/thread.h"
#include "doctor/doctor.h"

typedef struct lookup {
    char name[256];
    int code;
} lookup;

static void look_up(void *arg)
{
    lookup *l = arg;
    struct addrinfo *list = NULL;

    l->code = getaddrinfo(l->name, NULL, NULL, &list);
    if (l->code == 0)
        freeaddrinfo(list);
}

static void resolve(const char *name, double *seconds_out, bool *ok_out)
{
    const int64_t begin_ns = ddp_now_ns();
    lookup *l;

    if (DDP_ALLOC(l, 1) != DDP_OK)
        return;
    snprintf(l->name, sizeof l->name, "%.255s", name);
    const bool answered = ddpi_doctor_patient(look_up, l);
    *seconds_out = (double)(ddp_now_ns() - begin_ns) / 1e9;
    *ok_out = answered && l->code == 0;
    if (answered)
        ddp_free(l);
}

void ddpi_doctor_look_at_names(ddpi_doctor_net *net)
{
    char own[256] = "";

    resolve("localhost", &net->localhost_s, &net->localhost_ok);
    if (gethostname(own, sizeof own - 1) == 0)
        resolve(own, &net->own_name_s, &net->own_name_ok);
}
