/* augment.c - the --augment list as text. No state; any thread. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/transform.h"

enum { SIZE_MAX_PIXELS = 1 << 14, PADDING = 4, CUTOUT = 16 };

#define EXPECTED                                                                                   \
    "a list of crop[:PADDING] or rrc[:SIZE], flip and cutout[:SIDE], such as crop:4,flip, or none"

/* One entry of the list: [text, text + length). */
typedef struct entry {
    const char *text;
    size_t length;
} entry;

static ddp_status refuse(entry e)
{
    return DDP_FAIL(DDP_ERR_USAGE, "option --augment: found \"%.*s\", expected " EXPECTED,
                    (int)(e.length < 100 ? e.length : 100), e.text);
}

static bool is(entry e, const char *name)
{
    size_t length = strlen(name);
    return e.length >= length && strncmp(e.text, name, length) == 0 &&
           (e.length == length || e.text[length] == ':');
}

/* The number behind the colon, from least on; standard without one. -1: not such a number. */
static int64_t number(entry e, int64_t least, int64_t standard)
{
    const char *colon = memchr(e.text, ':', e.length);
    char *end;
    if (colon == NULL)
        return standard;
    if (colon[1] < '0' || colon[1] > '9')
        return -1;
    errno = 0;
    long value = strtol(colon + 1, &end, 10);
    if (errno != 0 || end != e.text + e.length || value < least || value > SIZE_MAX_PIXELS)
        return -1;
    return value;
}

static ddp_status add(entry e, ddp_augment *a)
{
    if (is(e, "crop") && !a->crop) {
        a->crop = true;
        a->padding = number(e, 0, PADDING);
        return a->padding < 0 ? refuse(e) : DDP_OK;
    }
    if (is(e, "rrc") && !a->resized_crop) {
        a->resized_crop = true;
        a->size = number(e, 1, 0);
        return a->size < 0 ? refuse(e) : DDP_OK;
    }
    if (is(e, "cutout") && a->cutout == 0) {
        a->cutout = number(e, 1, CUTOUT);
        return a->cutout < 0 ? refuse(e) : DDP_OK;
    }
    if (is(e, "flip") && e.length == strlen("flip") && !a->flip) {
        a->flip = true;
        return DDP_OK;
    }
    return refuse(e);
}

ddp_status ddp_augment_parse(const char *text, ddp_augment *augment_out)
{
    ddp_augment a = {.given = text != NULL && text[0] != 0};
    if (a.given && strcmp(text, "none") != 0)
        for (const char *at = text;;) {
            entry e = {at, strcspn(at, ",")};
            DDP_TRY(add(e, &a));
            if (at[e.length] == 0)
                break;
            at += e.length + 1;
        }
    if (a.crop && a.resized_crop)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "option --augment: found crop beside rrc, expected one of the two");
    *augment_out = a;
    return DDP_OK;
}
