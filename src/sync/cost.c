/* cost.c - the curve: a communication's time over its size, measured or given. See cost.h. */
#include "ddp/cost.h"

#include <math.h>
#include <string.h>

#include "ddp/fs.h"
#include "ddp/memory.h"

enum { CURVE_FILE_BYTES = 1 << 20 };
/* Of a point in a file: what follows from it is then finite. */
#define MAX_BYTES   1e15
#define MAX_SECONDS 1e6

/* The first point that is not smaller; count if there is none. */
static int place_of(const ddp_cost_curve *curve, double bytes)
{
    int lo = 0, hi = curve->count;

    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (curve->points[mid].bytes < bytes)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void ddp_cost_curve_add(ddp_cost_curve *curve, double bytes, double seconds)
{
    const int at = place_of(curve, bytes);
    ddp_cost_point *points = curve->points;

    if (at == curve->count || points[at].bytes != bytes) {
        if (curve->count == DDP_COST_MAX_POINTS)
            return;
        memmove(points + at + 1, points + at, (size_t)(curve->count - at) * sizeof *points);
        curve->count++;
    }
    points[at] = (ddp_cost_point){bytes, seconds};
    for (int i = at > 0 ? at : 1; i < curve->count; i++)
        points[i].seconds = fmax(points[i].seconds, points[i - 1].seconds);
}

ddp_cost_curve ddp_cost_curve_line(double latency, double bytes_per_second)
{
    const double far = 1 << 30;
    ddp_cost_curve curve = {0};

    ddp_cost_curve_add(&curve, 0, latency);
    ddp_cost_curve_add(&curve, far, latency + far / bytes_per_second);
    return curve;
}

double ddp_cost_seconds(const ddp_cost_curve *curve, double bytes)
{
    const ddp_cost_point *points = curve->points;
    int at = place_of(curve, bytes);

    if (curve->count == 0)
        return 0;
    if (at == 0)
        return points[0].seconds;
    if (curve->count == 1)
        return points[0].bytes > 0 ? points[0].seconds * bytes / points[0].bytes
                                   : points[0].seconds;
    if (at == curve->count)
        at--;
    const ddp_cost_point a = points[at - 1], b = points[at];
    return a.seconds + (bytes - a.bytes) * (b.seconds - a.seconds) / (b.bytes - a.bytes);
}

/* ---- files ---- */

static ddp_status read_point(const ddp_json *item, const char *what, size_t index,
                             ddp_cost_curve *curve)
{
    double bytes, seconds;

    if (!ddp_json_as_number(ddp_json_get(item, "bytes"), &bytes) ||
        !(bytes >= 0 && bytes <= MAX_BYTES) ||
        !ddp_json_as_number(ddp_json_get(item, "seconds"), &seconds) ||
        !(seconds >= 0 && seconds <= MAX_SECONDS))
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: points[%zu]: expected numbers bytes, from 0 to %g, and seconds, from "
                        "0 to %g",
                        what, index, MAX_BYTES, MAX_SECONDS);
    ddp_cost_curve_add(curve, bytes, seconds);
    return DDP_OK;
}

ddp_status ddp_cost_curve_read(const ddp_json *object, const char *what, ddp_cost_curve *curve_out)
{
    const ddp_json *points = ddp_json_get(object, "points");
    const size_t count = points != NULL && ddp_json_is_array(points) ? ddp_json_length(points) : 0;
    ddp_cost_curve curve = {0};
    int64_t value;

    if (count < 1 || count > DDP_COST_MAX_POINTS)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: expected \"points\", a list of 1 to %d", what,
                        DDP_COST_MAX_POINTS);
    for (size_t i = 0; i < count; i++)
        DDP_TRY(read_point(ddp_json_at(points, i), what, i, &curve));
    if (ddp_json_as_int(ddp_json_get(object, "ranks"), &value) && value > 0 && value <= INT32_MAX)
        curve.ranks = (int)value;
    if (ddp_json_as_int(ddp_json_get(object, "hosts"), &value) && value > 0 && value <= INT32_MAX)
        curve.hosts = (int)value;
    *curve_out = curve;
    return DDP_OK;
}

ddp_status ddp_cost_curve_load(const char *path, ddp_cost_curve *curve_out)
{
    char *text = NULL;
    size_t bytes;
    ddp_json *object = NULL;

    DDP_TRY(ddp_fs_read(path, CURVE_FILE_BYTES, &text, &bytes));
    ddp_status st = ddp_json_load(text, bytes, path, &object);
    if (st == DDP_OK)
        st = ddp_cost_curve_read(object, path, curve_out);
    ddp_json_destroy(object);
    ddp_free(text);
    return st;
}

ddp_status ddp_cost_curve_write(const ddp_cost_curve *curve, ddp_json *object)
{
    ddp_json *points = NULL;

    DDP_TRY(ddp_json_array(&points));
    for (int i = 0; i < curve->count; i++) {
        ddp_json *point = NULL;
        ddp_status st = ddp_json_object(&point);
        if (st != DDP_OK) {
            ddp_json_destroy(points);
            return st;
        }
        ddp_json_set_number(point, "bytes", curve->points[i].bytes);
        ddp_json_set_number(point, "seconds", curve->points[i].seconds);
        ddp_json_append(points, point);
    }
    ddp_json_set(object, "points", points);
    if (curve->ranks > 0)
        ddp_json_set_int(object, "ranks", curve->ranks);
    if (curve->hosts > 0)
        ddp_json_set_int(object, "hosts", curve->hosts);
    return DDP_OK;
}
