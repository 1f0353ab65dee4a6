/* allreduce_gpu.c - a rank's GPU and NCCL, for ddp_bench allreduce --comm nccl. */
#include "device/cuda_module.h"
#include "tools/bench/allreduce.h"

static ddp_status open_device(const ddp_comm *comm, const ddp_lane_ops **lane_out,
                              ddp_device **device_out)
{
    ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    const ddp_cuda_module *module;
    int visible;

    DDP_TRY(ddpi_cuda_module_open(&module, &visible));
    if (module->lane == NULL)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "option --comm nccl: this build has no NCCL");
    opts.index = ddp_comm_node_rank(comm) % visible;
    DDP_TRY(ddp_device_open(module->device, &opts, device_out));
    *lane_out = module->lane();
    return DDP_OK;
}

ddp_status ddpi_reduce_attach(ddp_comm *comm, ddp_device **device_out)
{
    const ddp_lane_opts opts = {.deterministic = false};
    const ddp_lane_ops *lane = NULL;
    ddp_device *device = NULL;

    ddp_status st = ddp_comm_agree(comm, open_device(comm, &lane, &device), "find a GPU");
    if (st == DDP_OK)
        st = ddp_comm_attach(comm, device, lane, &opts);
    if (st == DDP_OK)
        *device_out = device;
    else
        ddp_device_close(device);
    return st;
}
