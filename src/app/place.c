/* place.c - the choices about ranks and GPUs. See place.h. */
#include "app/place.h"

#include <stdio.h>
#include <string.h>

#include "ddp/memory.h"

enum { CORES_BYTES = 512, ROW_BYTES = 1024, UUID_SHOWN = 8 };

int ddpi_place_index(int local_rank, int visible)
{
    return local_rank % visible;
}

/* ---- sharing ---- */

/* A UUID is one GPU's in the whole world; without one, its place on the bus is all there is. */
static bool same_gpu(const ddpi_rank_info *a, const ddpi_rank_info *b)
{
    if (a->gpu.uuid[0] != '\0' || b->gpu.uuid[0] != '\0')
        return strcmp(a->gpu.uuid, b->gpu.uuid) == 0;
    return a->gpu.pci[0] != '\0' && strcmp(a->gpu.pci, b->gpu.pci) == 0 &&
           strcmp(a->host, b->host) == 0;
}

bool ddpi_place_find_shared(const ddpi_rank_info *ranks, int world, int *first_out, int *second_out)
{
    for (int b = 1; b < world; b++) {
        for (int a = 0; a < b; a++) {
            if (!same_gpu(&ranks[a], &ranks[b]))
                continue;
            *first_out = a;
            *second_out = b;
            return true;
        }
    }
    return false;
}

ddp_status ddpi_place_check(const ddpi_rank_info *ranks, int world, bool may_share)
{
    int a, b;

    if (may_share || !ddpi_place_find_shared(ranks, world, &a, &b))
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_USAGE,
                    "rank %d on %s and rank %d on %s have the same GPU (%s, %s): expected at most "
                    "as many ranks on a host as it has GPUs, or --share-device",
                    a, ranks[a].host, b, ranks[b].host, ranks[a].gpu.pci, ranks[a].gpu.uuid);
}

static ddp_status by_messages(const ddpi_lane_wish *wish, ddpi_lane_choice *choice_out)
{
    const bool can = wish->aware && !wish->exact;

    if (wish->buffers == DDP_DEVICE_BUFFERS_ON && !can)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED,
                        "option --mpi-device-buffers: found on where %s; "
                        "expected auto or off",
                        wish->exact ? "sums must keep an order, which only host memory does"
                                    : "this MPI library does not take GPU memory");
    if (wish->exact && wish->parts > 1)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED,
                        "option --exact: found ranks with %d partial sums each where gradients go "
                        "through host memory, which keeps the order of one for each rank; expected "
                        "--comm nccl, or a power of two of --logical-ranks on each rank",
                        wish->parts);
    *choice_out =
        can && wish->buffers != DDP_DEVICE_BUFFERS_OFF ? DDPI_LANE_DIRECT : DDPI_LANE_STAGED;
    return DDP_OK;
}

ddp_status ddpi_place_lane(const ddpi_lane_wish *wish, ddpi_lane_choice *choice_out)
{
    const bool asked = wish->comm == DDP_COMM_NCCL;

    if (asked && !wish->cuda)
        return DDP_FAIL(DDP_ERR_USAGE, "option --comm: found nccl where the ranks compute on CPUs, "
                                       "expected --device cuda or --comm mpi");
    if (asked && wish->shared)
        return DDP_FAIL(DDP_ERR_USAGE, "option --comm: found nccl with --share-device, expected "
                                       "mpi (NCCL needs a GPU for each rank)");
    if (asked && !wish->nccl)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "option --comm: the CUDA module was built without "
                                             "NCCL, expected --comm mpi");
    if (!wish->cuda)
        *choice_out = DDPI_LANE_NONE;
    else if (asked || (wish->comm == DDP_COMM_AUTO && !wish->shared && wish->nccl &&
                       wish->buffers != DDP_DEVICE_BUFFERS_ON))
        *choice_out = DDPI_LANE_NCCL;
    else
        return by_messages(wish, choice_out);
    return DDP_OK;
}

/* ---- the table ---- */

static int write_row(const ddpi_rank_info *info, int rank, char *text, size_t bytes)
{
    char cores[CORES_BYTES], gpu[sizeof info->gpu.name + DDPI_CUDA_UUID_BYTES] = "-";

    if (info->gpu.name[0] != '\0')
        snprintf(gpu, sizeof gpu, "%s %.*s", info->gpu.name, UUID_SHOWN, info->gpu.uuid);
    return snprintf(text, bytes, "\n  %-20.60s %4d  %-28s %-16.200s %s", info->host, rank, gpu,
                    ddpi_cores_format(&info->cores, cores, sizeof cores), info->network);
}

ddp_status ddpi_place_table(const ddpi_rank_info *ranks, int world, char **text_out)
{
    size_t bytes = ((size_t)world + 1) * ROW_BYTES, used;
    char *text;

    DDP_TRY(DDP_ALLOC(text, bytes));
    used = (size_t)snprintf(text, bytes, "  %-20s %4s  %-28s %-16s %s", "host", "rank", "GPU",
                            "cores", "interface");
    for (int r = 0; r < world; r++)
        used += (size_t)write_row(&ranks[r], r, text + used, bytes - used);
    *text_out = text;
    return DDP_OK;
}
