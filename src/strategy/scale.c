/* scale.c - the loss scale.
 *
 * f16 ends at 2^-24, where many gradients begin, and at 2^16. So the loss's gradient is multiplied
 * by a power of 2, which all gradients then carry, up to the optimizer. As large as they take it:
 * it is doubled now and then, and halved when it was too much, which all ranks see in the same
 * sum. One thread. */
#include "strategy/scale.h"

enum { GOOD_STEPS = 2000 };
#define SMALLEST 0x1p-14
#define LARGEST  0x1p24

ddp_status ddpi_scale_next(ddp_loss_scale *scale, bool grows, bool finite)
{
    if (finite) {
        scale->good_steps++;
        if (grows && scale->good_steps >= GOOD_STEPS && scale->value < LARGEST)
            *scale = (ddp_loss_scale){2 * scale->value, 0};
        return DDP_OK;
    }
    *scale = (ddp_loss_scale){scale->value / 2, 0};
    if (scale->value < SMALLEST)
        return DDP_FAIL(DDP_ERR_NONFINITE,
                        "gradients are not finite, however small the loss scale: it came down to "
                        "%g",
                        2 * scale->value);
    return DDP_OK;
}

ddp_status ddpi_scale_place_open(ddp_device *device, ddpi_scale_place *place)
{
    void *memory;
    place->device = device;
    DDP_TRY(ddp_device_alloc(device, sizeof *place->there, &memory));
    place->there = memory;
    DDP_TRY(ddp_device_host_alloc(device, sizeof *place->sent, &memory));
    place->sent = memory;
    *place->sent = 0;
    return DDP_OK;
}

void ddpi_scale_place_close(ddpi_scale_place *place)
{
    if (place->sent != NULL)
        ddp_device_host_free(place->device, place->sent, sizeof *place->sent);
    if (place->there != NULL)
        ddp_device_free(place->device, place->there, sizeof *place->there);
    *place = (ddpi_scale_place){0};
}

ddp_status ddpi_scale_send(ddpi_scale_place *place, double scale)
{
    if (place->there == NULL || (double)*place->sent == scale)
        return DDP_OK;
    *place->sent = (float)scale;
    return ddp_device_copy(place->device, ddp_device_main_stream(place->device), place->there,
                           place->sent, sizeof *place->sent, DDP_COPY_TO_DEVICE);
}
