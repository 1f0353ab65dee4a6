/* inject.c - mishaps on purpose: their list as text, and what happens on the rank that is named.
 *
 * A bit is flipped after the step's update has been published, since before it the flip would be
 * overwritten, or spread by the parameter's owner to all replicas alike. The rank's thread. */
#include "ddp/inject.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/fs.h"
#include "ddp/log.h"
#include "ddp/thread.h"
#include "train/inject_impl.h"

#define DEFAULT_SECONDS 10.0
#define MAX_SECONDS     1e6
#define MAX_STEP        INT64_C(1000000000000000)
#define ITEM_BYTES      64
/* A high bit of the mantissa: a value that is wrong, but none that shows in the loss at once. */
#define FLIPPED_BIT UINT32_C(0x00200000)
#define QUIET_NAN   UINT32_C(0x7fc00000)

static const char *const names[DDP_INJECT_COUNT] = {
    [DDP_INJECT_KILL] = "kill",       [DDP_INJECT_STOP] = "stop",     [DDP_INJECT_DELAY] = "delay",
    [DDP_INJECT_EXIT] = "exit",       [DDP_INJECT_ENOSPC] = "enospc", [DDP_INJECT_NAN] = "nan",
    [DDP_INJECT_BITFLIP] = "bitflip",
};

const char *ddp_inject_name(ddp_inject_kind kind)
{
    return (unsigned)kind < DDP_INJECT_COUNT ? names[kind] : "unknown";
}

bool ddp_inject_ends(ddp_inject_kind kind)
{
    return kind == DDP_INJECT_KILL || kind == DDP_INJECT_STOP || kind == DDP_INJECT_EXIT ||
           kind == DDP_INJECT_ENOSPC;
}

/* ---- as text ---- */

static bool find_kind(const char *name, ddp_inject_kind *kind_out)
{
    for (int i = 0; i < DDP_INJECT_COUNT; i++) {
        if (strcmp(name, names[i]) != 0)
            continue;
        *kind_out = (ddp_inject_kind)i;
        return true;
    }
    return false;
}

/* A whole number from digits alone, up to the end of *at or a colon, which is skipped. */
static bool take_number(const char **at, int64_t max, int64_t *number_out)
{
    size_t digits = strspn(*at, "0123456789");

    if (digits == 0 || digits > 15 || ((*at)[digits] != '\0' && (*at)[digits] != ':'))
        return false;
    *number_out = strtoll(*at, NULL, 10);
    *at += digits + ((*at)[digits] == ':');
    return *number_out <= max;
}

/* `item` may be changed. */
static bool parse_item(char *item, ddp_injection *injection)
{
    char *where = strchr(item, '@');
    int64_t rank;
    char *end;

    if (where == NULL)
        return false;
    *where++ = '\0';
    const char *at = where;
    injection->seconds = DEFAULT_SECONDS;
    if (!find_kind(item, &injection->kind) || !take_number(&at, INT32_MAX, &rank) ||
        at[-1] != ':' || !take_number(&at, MAX_STEP, &injection->step) || injection->step < 1)
        return false;
    injection->rank = (int)rank;
    if (at[-1] != ':')
        return true;
    injection->seconds = strtod(at, &end);
    return injection->kind == DDP_INJECT_DELAY && end != at && *end == '\0' &&
           injection->seconds >= 0 && injection->seconds <= MAX_SECONDS;
}

ddp_status ddp_inject_parse(const char *text, ddp_inject *inject_out)
{
    ddp_inject inject = {0};

    for (const char *at = text;; at++) {
        char item[ITEM_BYTES];
        const int length = (int)strcspn(at, ",");
        const int wrote = snprintf(item, sizeof item, "%.*s", length, at);
        if (inject.count == DDP_INJECT_MAX)
            return DDP_FAIL(DDP_ERR_USAGE, "option --inject: found more than %d mishaps",
                            DDP_INJECT_MAX);
        if (wrote >= ITEM_BYTES || !parse_item(item, &inject.list[inject.count++]))
            return DDP_FAIL(DDP_ERR_USAGE,
                            "option --inject: found \"%.*s\", expected WHAT@RANK:STEP, where WHAT "
                            "is kill, stop, delay (then :SECONDS may follow), exit, enospc, nan or "
                            "bitflip, and steps count from 1",
                            length, at);
        at += length;
        if (*at == '\0')
            break;
    }
    *inject_out = inject;
    return DDP_OK;
}

/* ---- what happens ---- */

static int no_space(void *arg, const char *what, const char *path)
{
    (void)arg;
    (void)what;
    return strstr(path, "/checkpoints/") != NULL ? ENOSPC : 0;
}

/* The first parameter in memory is one of the last layer's: nothing behind it hides its value. */
static ddp_status write_param(const ddp_trainer_parts *parts, uint32_t bits, uint32_t *before_out)
{
    ddp_stream *stream = ddp_device_main_stream(parts->device);
    float *at = ddp_strategy_params(parts->strategy);

    DDP_TRY(ddp_device_copy(parts->device, stream, before_out, at, sizeof *before_out,
                            DDP_COPY_TO_HOST));
    DDP_TRY(ddp_stream_sync(stream));
    DDP_TRY(ddp_device_copy(parts->device, stream, at, &bits, sizeof bits, DDP_COPY_TO_DEVICE));
    return ddp_stream_sync(stream);
}

static ddp_status happen(const ddp_injection *injection, const ddp_trainer_parts *parts,
                         uint32_t *kept)
{
    switch (injection->kind) {
    case DDP_INJECT_KILL:
        raise(SIGKILL);
        break;
    case DDP_INJECT_STOP:
        raise(SIGSTOP);
        break;
    case DDP_INJECT_DELAY:
        ddp_sleep_ns((int64_t)(injection->seconds * 1e9));
        break;
    case DDP_INJECT_EXIT:
        ddp_vanish(0);
    case DDP_INJECT_ENOSPC:
        ddp_fs_on_fault(no_space, NULL);
        break;
    case DDP_INJECT_NAN:
        return write_param(parts, QUIET_NAN, kept);
    case DDP_INJECT_BITFLIP:
    case DDP_INJECT_COUNT:
        break;
    }
    return DDP_OK;
}

static bool is_due(const ddp_injection *injection, const ddp_trainer_parts *parts, int64_t step)
{
    return injection->step == step && injection->rank == ddp_comm_rank(parts->comm);
}

ddp_status ddpi_inject_before(const ddp_inject *inject, const ddp_trainer_parts *parts,
                              int64_t step, uint32_t *kept)
{
    for (int i = 0; i < inject->count; i++) {
        const ddp_injection *injection = &inject->list[i];
        if (!is_due(injection, parts, step))
            continue;
        ddp_warn("--inject: %s before step %lld", ddp_inject_name(injection->kind),
                 (long long)step);
        DDP_TRY(happen(injection, parts, kept));
    }
    return DDP_OK;
}

static ddp_status flip_bit(const ddp_trainer_parts *parts)
{
    uint32_t bits, wrong;

    DDP_TRY(write_param(parts, QUIET_NAN, &bits));
    return write_param(parts, bits ^ FLIPPED_BIT, &wrong);
}

ddp_status ddpi_inject_after(const ddp_inject *inject, const ddp_trainer_parts *parts, int64_t step,
                             uint32_t kept)
{
    uint32_t wrong;

    for (int i = 0; i < inject->count; i++) {
        const ddp_injection *injection = &inject->list[i];
        if (!is_due(injection, parts, step))
            continue;
        if (injection->kind == DDP_INJECT_BITFLIP)
            DDP_TRY(flip_bit(parts));
        /* A step that is left out must leave nothing behind. */
        if (injection->kind == DDP_INJECT_NAN)
            DDP_TRY(write_param(parts, kept, &wrong));
    }
    return DDP_OK;
}
