/* doctor.c - the visit: collect, gather, measure, judge, tell. */
#include "doctor/doctor.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ddp/memory.h"
#include "ddp/thread.h"

enum { BUILD_BYTES = 64, SIDE_LOOKS = 30 };
#define SIDE_PAUSE_NS INT64_C(100000000)

/* ---- collecting ---- */

static void fill_host(const ddpi_doctor_input *input, ddpi_doctor_record *record)
{
    ddp_comm *comm = input->comm;

    snprintf(record->host, sizeof record->host, "%s", ddp_comm_host(comm));
    record->rank = ddp_comm_rank(comm);
    record->node = ddp_comm_node(comm);
    record->pid = (int32_t)getpid();
    record->gpu = input->gpu;
    ddpi_doctor_look_at_host(record);
    record->cpu.threads = input->threads;
    record->cpu.at_start = input->cores_at_start;
}

/* It is made while the ranks go on; a bridge that leads nowhere may be tried first. */
static void look_at_side(ddp_comm *comm, ddpi_doctor_net *net)
{
    for (int i = 0; i < SIDE_LOOKS; i++) {
        net->side_missing = !ddp_comm_side_address(comm, net->side, sizeof net->side);
        if (!net->side_missing)
            return;
        ddp_sleep_ns(SIDE_PAUSE_NS);
    }
}

static void fill_rest(const ddpi_doctor_input *input, ddpi_doctor_record *record)
{
    ddpi_doctor_look_at_limits(&record->limits);
    ddpi_doctor_look_at_net(&record->net);
    if (ddp_comm_node_rank(input->comm) == 0)
        ddpi_doctor_look_at_names(&record->net);
    look_at_side(input->comm, &record->net);
    record->launch.slurm_nodes = ddpi_doctor_number(input->envp, "SLURM_JOB_NUM_NODES");
    record->launch.slurm_tasks = ddpi_doctor_number(input->envp, "SLURM_NTASKS");
    record->launch.start_s = input->start_s;
    snprintf(record->mpi, sizeof record->mpi, "%s", ddp_comm_library(input->comm));
    snprintf(record->device, sizeof record->device, "%s", input->device ? input->device : "");
    snprintf(record->cuda, sizeof record->cuda, "%s", input->cuda);
    ddpi_doctor_look_at_env(input->envp, record->env, sizeof record->env);
}

/* ---- gathering ---- */

/* Records of another layout could not be read: that is found out first. */
static ddp_status compare_builds(ddp_comm *comm, ddpi_findings *findings, bool *readable)
{
    char mine[BUILD_BYTES], (*all)[BUILD_BYTES];
    const int world = ddp_comm_world(comm);
    ddp_status st = DDP_ALLOC(all, (size_t)world);

    DDP_TRY(ddp_comm_agree(comm, st, "compare builds"));
    memset(mine, 0, sizeof mine);
    ddpi_doctor_build(mine, sizeof mine);
    snprintf(mine + strlen(mine), sizeof mine - strlen(mine), " %zu", sizeof(ddpi_doctor_record));
    st = ddp_comm_allgather(comm, mine, sizeof mine, all);
    *readable = true;
    for (int r = 1; r < world && st == DDP_OK; r++) {
        if (strcmp(all[0], all[r]) == 0)
            continue;
        const bool fits = strcmp(strrchr(all[0], ' '), strrchr(all[r], ' ')) == 0;
        *readable = *readable && fits;
        ddpi_findings_add(findings, fits ? DDPI_FINDING_NOTE : DDPI_FINDING_FAILS,
                          "install the same one on all hosts",
                          "ranks 0 and %d run different builds of ddp_train: %s and %s", r, all[0],
                          all[r]);
        break;
    }
    ddp_free(all);
    return st;
}

static ddp_status gather(const ddpi_doctor_input *input, ddpi_doctor_record *all)
{
    ddpi_doctor_record *mine;
    ddp_status st = DDP_ALLOC(mine, 1);

    DDP_TRY(ddp_comm_agree(input->comm, st, "look at the machine"));
    fill_host(input, mine);
    fill_rest(input, mine);
    st = ddpi_doctor_look_at_storage(input->comm, &input->needs, &mine->storage);
    if (st == DDP_OK)
        st = ddp_comm_allgather(input->comm, mine, sizeof *mine, all);
    ddp_free(mine);
    return st;
}

/* ---- telling ---- */

static ddp_status tell(const ddpi_doctor_case *c, const ddpi_findings *findings)
{
    char *text;

    DDP_TRY(ddpi_doctor_report(c, findings, &text));
    fputs(text, stdout);
    ddp_free(text);
    return fflush(stdout) == 0 ? DDP_OK : DDP_FAIL(DDP_ERR_IO, "standard output takes no text");
}

static ddp_status judge(const ddpi_doctor_input *input, ddpi_doctor_record *records,
                        ddpi_doctor_case *c, ddpi_findings *findings)
{
    DDP_TRY(gather(input, records));
    ddp_status st =
        ddpi_doctor_measure(input->comm, input->stream, input->needs.gradient_values, &c->links);
    if (st == DDP_ERR_NOMEM) {
        ddpi_findings_add(findings, DDPI_FINDING_FAILS, "take a smaller model, or more memory",
                          "there is no memory for the gradients: %s", ddp_status_message());
        st = DDP_OK;
    }
    if (st == DDP_OK && ddp_comm_rank(input->comm) == 0)
        ddpi_rules_all(c, findings);
    return st;
}

ddp_status ddpi_doctor_run(const ddpi_doctor_input *input, ddpi_findings *findings, int *fails_out)
{
    const int world = ddp_comm_world(input->comm);
    ddpi_doctor_record *records;
    ddpi_doctor_case *c;
    bool readable;
    int32_t fails = 0;

    DDP_TRY(compare_builds(input->comm, findings, &readable));
    ddp_status st = DDP_ALLOC(c, 1);
    if (st == DDP_OK && (st = DDP_ALLOC(records, (size_t)world)) != DDP_OK)
        ddp_free(c);
    DDP_TRY(ddp_comm_agree(input->comm, st, "look at all ranks"));
    *c = (ddpi_doctor_case){.world = world, .ranks = records, .needs = input->needs};
    if (readable)
        st = judge(input, records, c, findings);
    else
        c->world = 0;
    if (st == DDP_OK && ddp_comm_rank(input->comm) == 0) {
        st = tell(c, findings);
        fails = ddpi_findings_count(findings, DDPI_FINDING_FAILS);
    }
    ddp_free(records);
    ddp_free(c);
    DDP_TRY(st);
    DDP_TRY(ddp_comm_broadcast(input->comm, 0, &fails, sizeof fails));
    *fails_out = fails;
    return DDP_OK;
}
