/* texts.c - options whose text is more than one number: shapes, normalization, times, and the loss
 * scale. Pure functions. */
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

/* ---- durations ---- */

static ddp_status bad_duration(const char *text)
{
    return DDP_FAIL(DDP_ERR_USAGE,
                    "option --time-limit: found \"%.100s\", expected a time above 0 such as 90, "
                    "15m, 1h30m or 1-12:00:00",
                    text);
}

/* "[D-]H:MM[:SS]": the places are sixtieths of each other. */
static bool parse_clock(const char *text, double *seconds_out)
{
    char *end;
    long parts[3] = {0}, days = 0;
    int count = 0;

    for (const char *at = text;; at = end + 1) {
        if (*at < '0' || *at > '9' || count == 3)
            return false;
        parts[count] = strtol(at, &end, 10);
        if (parts[count] > 1000000)
            return false;
        if (*end == '-' && count == 0 && days == 0) {
            days = parts[0];
            continue;
        }
        count++;
        if (*end == 0)
            break;
        if (*end != ':')
            return false;
    }
    *seconds_out =
        (double)days * 86400 + (double)parts[0] * 3600 + (double)parts[1] * 60 + (double)parts[2];
    return count > 1 || days > 0;
}

/* "1h30m", "90s", "90"; each unit at most once, the larger ones first. */
static bool parse_units(const char *text, double *seconds_out)
{
    static const char units[] = "dhms";
    static const double seconds[] = {86400, 3600, 60, 1};
    const char *at = text;
    int next = 0;

    *seconds_out = 0;
    while (*at != 0) {
        char *end;
        if ((*at < '0' || *at > '9') && *at != '.')
            return false;
        const double value = strtod(at, &end);
        const char *unit = *end != 0 ? strchr(units, *end) : units + 3;
        if (unit == NULL || unit - units < next || !(value <= 1e9))
            return false;
        *seconds_out += value * seconds[unit - units];
        next = (int)(unit - units) + 1;
        at = *end != 0 ? end + 1 : end;
    }
    return true;
}

ddp_status ddpi_config_parse_duration(const char *text, double *seconds_out)
{
    const bool clock = strpbrk(text, ":-") != NULL;

    if (!(clock ? parse_clock(text, seconds_out) : parse_units(text, seconds_out)) ||
        !(*seconds_out > 0))
        return bad_duration(text);
    return DDP_OK;
}

ddp_status ddpi_config_parse_scale(const char *text, double *scale_out, bool *grows_out)
{
    enum { DYNAMIC_START = 65536 };
    const double least = 0x1p-14, most = 0x1p127; /* f32 holds it, with room for products */
    char *end;

    *grows_out = strcmp(text, "dynamic") == 0;
    *scale_out = *grows_out ? DYNAMIC_START : strtod(text, &end);
    if (*grows_out || (end != text && *end == 0 && *scale_out >= least && *scale_out <= most))
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_USAGE,
                    "option --loss-scale: found \"%.100s\", expected dynamic or a number from "
                    "2^-14 to 2^127",
                    text);
}

ddp_status ddpi_config_parse_buckets(const char *text, bool *auto_out, double *mb_out)
{
    const double least = 1e-3, most = 65536;
    char *end;

    *auto_out = strcmp(text, "auto") == 0;
    if (*auto_out)
        return DDP_OK;
    const double value = strtod(text, &end);
    if (end == text || *end != 0 || !(value >= least && value <= most))
        return DDP_FAIL(DDP_ERR_USAGE,
                        "option --bucket-cap-mb: found \"%.100s\", expected auto or a number from "
                        "0.001 to 65536",
                        text);
    *mb_out = value;
    return DDP_OK;
}
