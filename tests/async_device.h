/* async_device.h - the CPU as a device whose main stream is a thread of its own: what its callers
 * give it is done later, as on an accelerator. Memory is still the host's, but nobody says so. */
#ifndef DDP_TESTS_ASYNC_DEVICE_H
#define DDP_TESTS_ASYNC_DEVICE_H

#include "device/cpu/cpu_impl.h"

static bool async_is_host(const ddp_device *device)
{
    (void)device;
    return false;
}

static ddp_status async_import(ddp_device *device, const ddp_layout *layout, const float *plain,
                               void *dst)
{
    DDP_TRY(ddp_stream_sync(ddp_device_main_stream(device)));
    return ddpi_layout_import(device, layout, plain, dst);
}

static ddp_status async_open(const ddp_device_opts *opts, ddp_device **device_out);

/* A backend as ddp_device_cpu(). */
static const ddp_device_ops *async_device(void)
{
    static ddpi_op_ops op;
    static ddp_device_ops ops;
    static int made; /* 0: not, 1: being made, 2: made; ranks are threads */
    int none = 0;
    if (__atomic_compare_exchange_n(&made, &none, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        op = *ddp_device_cpu()->op;
        op.layout_import = async_import;
        ops = *ddp_device_cpu();
        ops.op = &op;
        ops.open = async_open;
        ops.is_host = async_is_host;
        __atomic_store_n(&made, 2, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&made, __ATOMIC_ACQUIRE) != 2) {
    }
    return &ops;
}

static ddp_status async_open(const ddp_device_opts *opts, ddp_device **device_out)
{
    ddp_device *device;
    ddp_stream *stream;
    DDP_TRY(ddp_device_open(ddp_device_cpu(), opts, &device));
    const ddp_status st = ddpi_cpu_stream_create(device, "main", &stream);
    if (st != DDP_OK) {
        ddp_device_close(device);
        return st;
    }
    ddpi_cpu_device *cpu = ddpi_cpu_of(device);
    ddpi_cpu_stream_destroy((ddp_stream *)cpu->main);
    cpu->main = (ddpi_cpu_stream *)stream;
    device->ops = async_device();
    *device_out = device;
    return DDP_OK;
}

#endif
