/* texts.c - the two options whose text is more than one number: shapes and normalization. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_impl.h"

enum { INPUT_DIMS = 3, DIM_MAX = 1 << 16 };

static ddp_status bad_shape(const char *text)
{
    return DDP_FAIL(DDP_ERR_USAGE,
                    "option --input-shape: found \"%.100s\", expected channels, height and width "
                    "from 1 to %d, such as 1x28x28",
                    text, DIM_MAX);
}

ddp_status ddpi_config_parse_shape(const char *text, ddp_shape *shape_out)
{
    ddp_shape shape = {.ndim = INPUT_DIMS};
    const char *at = text;

    for (int i = 0; i < INPUT_DIMS; i++) {
        char *end = NULL;
        errno = 0;
        long dim = isdigit((unsigned char)*at) ? strtol(at, &end, 10) : 0;
        if (dim < 1 || dim > DIM_MAX || errno != 0 || *end != (i + 1 < INPUT_DIMS ? 'x' : '\0'))
            return bad_shape(text);
        shape.dims[i] = dim;
        at = end + 1;
    }
    *shape_out = shape;
    return DDP_OK;
}

/* Numbers with commas between, up to `stop`. Returns how many, 0 if that is not what stands there.
 */
static int parse_list(const char *text, char stop, float values[DDP_CONFIG_MAX_CHANNELS],
                      const char **end_out)
{
    int count = 0;

    for (const char *at = text; count < DDP_CONFIG_MAX_CHANNELS;) {
        char *end;
        float value = strtof(at, &end);
        if (end == at || !isfinite(value))
            return 0;
        values[count++] = value;
        if (*end == stop) {
            *end_out = end + 1;
            return count;
        }
        if (*end != ',')
            return 0;
        at = end + 1;
    }
    return 0;
}

ddp_status ddpi_config_parse_normalize(const char *text, ddp_normalize *normalize_out)
{
    ddp_normalize n = {0};
    const char *deviations, *end;

    n.count = parse_list(text, '/', n.mean, &deviations);
    bool valid = n.count > 0 && parse_list(deviations, '\0', n.deviation, &end) == n.count;
    for (int i = 0; valid && i < n.count; i++)
        valid = n.deviation[i] > 0;
    if (!valid)
        return DDP_FAIL(
            DDP_ERR_USAGE,
            "option --normalize: found \"%.100s\", expected as many means as deviations "
            "above 0, such as 0.5/0.25 or 0.4,0.5,0.6/0.2,0.2,0.2",
            text);
    *normalize_out = n;
    return DDP_OK;
}
