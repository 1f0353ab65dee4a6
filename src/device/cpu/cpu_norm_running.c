/* cpu_norm_running.c - running statistics of a normalisation: a few values per channel. */
#include "device/cpu/cpu_impl.h"

static ddp_status run(const void *payload)
{
    const ddp_norm_running_args *args = payload;
    /* One value has no deviation; others refuse it, which a last batch of one would not survive. */
    const double unbiased = args->count > 1 ? args->count - 1 : 1;
    for (int64_t c = 0; c < args->channels; c++) {
        const double mean = args->running_mean[c], var = args->running_var[c];
        args->running_mean[c] = (float)(mean + args->momentum * (args->mean[c] - mean));
        args->running_var[c] = (float)(var + args->momentum * (args->m2[c] / unbiased - var));
    }
    return DDP_OK;
}

ddp_status ddpi_cpu_norm_running(ddp_stream *stream, const ddp_norm_running_args *args)
{
    return ddpi_cpu_submit(stream, run, args, sizeof *args);
}
