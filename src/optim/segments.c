/* segments.c - settings of each parameter, from its flags and the groups that its name is in.
 *
 * Neighbours with equal settings become one segment, so that the update of a bucket is a few long
 * passes. Set-up only. One thread. */
#include "optim/segments.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/memory.h"

enum { MAX_GROUPS = 32 };

#define USAGE(...) DDP_FAIL(DDP_ERR_USAGE, __VA_ARGS__)

/* ---- groups ---- */

typedef struct group {
    char pattern[DDP_PARAM_NAME_BYTES];
    bool has_lr, has_decay;
    double lr, decay;
    int members;
} group;

typedef struct group_list {
    group items[MAX_GROUPS];
    int count;
} group_list;

static ddp_status refuse(const char *item, size_t length, const char *want)
{
    return USAGE("option --param-group: found \"%.*s\", expected %s", (int)length, item, want);
}

/* "lr=X" or "wd=X" at *at, up to `end` or a comma; moves *at behind it. */
static ddp_status parse_setting(const char **at, const char *end, group *g)
{
    const char *name = *at;
    const char *stop = memchr(name, ',', (size_t)(end - name));
    stop = stop != NULL ? stop : end;
    bool lr = strncmp(name, "lr=", 3) == 0, decay = strncmp(name, "wd=", 3) == 0;
    char *rest = NULL;
    double value = lr || decay ? strtod(name + 3, &rest) : 0;
    if (rest == NULL || rest == name + 3 || rest != stop || !(value >= 0 && value <= 1e6))
        return refuse(name, (size_t)(stop - name), "lr=X or wd=X with X from 0 to 1e6");
    if (lr) {
        g->has_lr = true;
        g->lr = value;
    } else {
        g->has_decay = true;
        g->decay = value;
    }
    *at = stop < end ? stop + 1 : end;
    return DDP_OK;
}

/* "PATTERN:lr=X,wd=X" from text to end. */
static ddp_status parse_group(const char *text, const char *end, group *g)
{
    const char *colon = memchr(text, ':', (size_t)(end - text));
    if (colon == NULL || colon == text || colon + 1 == end ||
        colon - text >= DDP_PARAM_NAME_BYTES || end[-1] == ',')
        return refuse(text, (size_t)(end - text), "PATTERN:lr=X,wd=X");
    *g = (group){0};
    memcpy(g->pattern, text, (size_t)(colon - text));
    for (const char *at = colon + 1; at < end;)
        DDP_TRY(parse_setting(&at, end, g));
    return DDP_OK;
}

static ddp_status parse_groups(const ddp_optim_opts *opts, group_list *list)
{
    list->count = 0;
    for (const char *at = opts->groups; at != NULL && *at != 0;) {
        const char *end = strchrnul(at, ';');
        if (list->count == MAX_GROUPS)
            return USAGE("option --param-group: found more than %d groups", MAX_GROUPS);
        DDP_TRY(parse_group(at, end, &list->items[list->count]));
        if (list->items[list->count++].has_lr && opts->lr == 0)
            return USAGE("option --param-group: found a learning rate beside --lr 0, expected "
                         "--lr above 0, which group rates are relative to");
        at = *end == ';' ? end + 1 : end;
    }
    return DDP_OK;
}

ddp_status ddpi_groups_check(const ddp_optim_opts *opts)
{
    group_list list;
    return parse_groups(opts, &list);
}

/* ---- segments ---- */

static ddpi_segment settings_of(const ddp_optim_opts *opts, const ddp_param *param,
                                group_list *groups)
{
    bool weight = (param->flags & DDP_PARAM_DECAY) != 0;
    bool decays = weight || opts->decay_on == DDP_DECAY_ON_ALL;
    ddpi_segment s = {.lr_scale = 1,
                      .weight_decay = decays ? opts->weight_decay : 0,
                      .frozen = (param->flags & DDP_PARAM_TRAINABLE) == 0,
                      .norm = -1};
    for (int i = 0; i < groups->count; i++) {
        group *g = &groups->items[i];
        if (fnmatch(g->pattern, param->name, 0) != 0)
            continue;
        g->members++;
        s.lr_scale = g->has_lr ? g->lr / opts->lr : s.lr_scale;
        s.weight_decay = g->has_decay ? g->decay : s.weight_decay;
    }
    return s;
}

static bool mergeable(const ddpi_segment *a, const ddpi_segment *b)
{
    if (a->frozen && b->frozen)
        return true;
    return a->frozen == b->frozen && a->norm < 0 && b->norm < 0 && a->lr_scale == b->lr_scale &&
           a->weight_decay == b->weight_decay;
}

static ddp_status check_members(const group_list *groups)
{
    for (int i = 0; i < groups->count; i++)
        if (groups->items[i].members == 0)
            return USAGE("option --param-group: found the pattern \"%s\", which is no parameter's "
                         "name",
                         groups->items[i].pattern);
    return DDP_OK;
}

ddp_status ddpi_segments_make(const ddp_optim_opts *opts, const ddp_param_table *table, bool adapts,
                              ddpi_segments *segments_out)
{
    int params = ddp_param_table_count(table);
    group_list groups;
    ddpi_segments made = {0};
    DDP_TRY(parse_groups(opts, &groups));
    DDP_TRY(DDP_ALLOC(made.items, (size_t)params));
    for (int i = 0; i < params; i++) {
        const ddp_param *p = ddp_param_table_at(table, i);
        ddpi_segment s = settings_of(opts, p, &groups);
        s.lo = p->offset;
        s.hi = i + 1 < params ? ddp_param_table_at(table, i + 1)->offset
                              : ddp_param_table_length(table);
        if (adapts && !s.frozen && (p->flags & DDP_PARAM_DECAY) != 0)
            s.norm = made.norms++;
        if (made.count > 0 && mergeable(&made.items[made.count - 1], &s))
            made.items[made.count - 1].hi = s.hi;
        else
            made.items[made.count++] = s;
    }
    ddp_status st = check_members(&groups);
    if (st != DDP_OK)
        ddpi_segments_free(&made);
    else
        *segments_out = made;
    return st;
}

void ddpi_segments_free(ddpi_segments *segments)
{
    ddp_free(segments->items);
    *segments = (ddpi_segments){0};
}
