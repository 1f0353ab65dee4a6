/* optim.c - what all optimizers share: checking, state buffers, the step's scalars, and the walk
 * over the segments of a range.
 *
 * State buffers are as long as the flat parameter buffer on every rank, although a rank that owns a
 * slice touches only that slice of them: pages that are never touched cost nothing, and any change
 * of ownership needs no reallocation. One thread. */
#include <math.h>
#include <string.h>

#include "ddp/memory.h"
#include "optim/optim_impl.h"

static const ddpi_optim_ops *const optimizers[] = {
    [DDP_OPTIM_SGD] = &ddpi_optim_sgd,
    [DDP_OPTIM_ADAMW] = &ddpi_optim_adamw,
    [DDP_OPTIM_LARS] = &ddpi_optim_lars,
    [DDP_OPTIM_LAMB] = &ddpi_optim_lamb,
};

/* ---- life ---- */

ddp_status ddp_optim_check(const ddp_optim_opts *opts)
{
    if (opts->kind < 0 || (size_t)opts->kind >= sizeof optimizers / sizeof *optimizers)
        return DDP_FAIL(DDP_ERR_USAGE, "optimizer number %d is not known", opts->kind);
    if (!(opts->ema >= 0 && opts->ema < 1))
        return DDP_FAIL(DDP_ERR_USAGE, "option --ema: found %g, expected less than 1", opts->ema);
    DDP_TRY(optimizers[opts->kind]->check(opts));
    return ddpi_groups_check(opts);
}

static ddp_status alloc_flat(ddp_optim *optim, float **flat_out)
{
    void *memory;
    DDP_TRY(ddp_device_alloc(optim->device, optim->length * sizeof(float), &memory));
    *flat_out = memory;
    return DDP_OK;
}

static bool in_pieces(const ddp_optim *optim)
{
    return optim->pieces.sums != NULL;
}

static size_t measured_bytes(const ddp_optim *optim)
{
    const int places = in_pieces(optim) ? optim->pieces.count : optim->segments.count;
    return (size_t)places * DDPI_PIECE_SUMS * sizeof *optim->measured;
}

static ddp_status alloc_measured(ddp_optim *optim)
{
    void *memory;
    DDP_TRY(ddp_device_alloc(optim->device, measured_bytes(optim), &memory));
    optim->measured = memory;
    DDP_TRY(ddp_device_host_alloc(optim->device, measured_bytes(optim), &memory));
    optim->fetched = memory;
    return DDP_OK;
}

static void free_measured(ddp_optim *optim)
{
    if (optim->measured != NULL)
        ddp_device_free(optim->device, optim->measured, measured_bytes(optim));
    if (optim->fetched != NULL)
        ddp_device_host_free(optim->device, optim->fetched, measured_bytes(optim));
    optim->measured = optim->fetched = NULL;
}

static ddp_status allocate(ddp_optim *optim, const ddp_param_table *table)
{
    bool adapts = optim->ops->norms != DDPI_NORMS_NONE;
    DDP_TRY(ddpi_segments_make(&optim->opts, table, adapts, &optim->segments));
    optim->opts.groups = NULL; /* the caller's */
    optim->sum_count = DDPI_SUM_NORMS + 2 * (size_t)optim->segments.norms;
    DDP_TRY(DDP_ALLOC(optim->sums, optim->sum_count));
    DDP_TRY(alloc_measured(optim));
    int want = optim->ops->slots(&optim->opts);
    DDP_ASSERT(want <= DDPI_OPTIM_MAX_SLOTS);
    for (; optim->slot_count < want; optim->slot_count++)
        DDP_TRY(alloc_flat(optim, &optim->slots[optim->slot_count]));
    return optim->opts.ema > 0 ? alloc_flat(optim, &optim->average) : DDP_OK;
}

ddp_status ddp_optim_create(const ddp_optim_opts *opts, ddp_device *device,
                            const ddp_param_table *table, ddp_optim **optim_out)
{
    ddp_optim *optim;
    DDP_TRY(ddp_optim_check(opts));
    DDP_TRY(DDP_ALLOC(optim, 1));
    optim->ops = optimizers[opts->kind];
    optim->opts = *opts;
    optim->device = device;
    optim->length = ddp_param_table_length(table);
    ddp_status st = allocate(optim, table);
    if (st != DDP_OK) {
        ddp_optim_destroy(optim);
        return st;
    }
    *optim_out = optim;
    return DDP_OK;
}

void ddp_optim_destroy(ddp_optim *optim)
{
    if (optim == NULL)
        return;
    for (int i = 0; i < optim->slot_count; i++)
        ddp_device_free(optim->device, optim->slots[i], optim->length * sizeof(float));
    if (optim->average != NULL)
        ddp_device_free(optim->device, optim->average, optim->length * sizeof(float));
    free_measured(optim);
    ddpi_pieces_free(&optim->pieces);
    ddpi_segments_free(&optim->segments);
    ddp_free(optim->sums);
    ddp_free(optim->live_segments);
    ddp_free(optim);
}

ddp_status ddp_optim_set_blocks(ddp_optim *optim, const ddp_range *blocks, int count)
{
    DDP_ASSERT(optim->pieces.count == 0);
    free_measured(optim); /* has places for segments */
    DDP_TRY(ddpi_pieces_make(&optim->segments, blocks, count, &optim->pieces));
    return alloc_measured(optim);
}

/* ---- a step ---- */

static ddpi_round first_round(const ddp_optim *optim)
{
    const ddp_optim_opts *o = &optim->opts;
    if (o->clip_grad_norm > 0 || o->skip_nonfinite || optim->ops->norms == DDPI_NORMS_GRADIENT)
        return DDPI_ROUND_GRADIENT;
    return optim->ops->norms == DDPI_NORMS_DIRECTION ? DDPI_ROUND_DIRECTION : DDPI_ROUND_NONE;
}

void ddp_optim_begin(ddp_optim *optim, double lr, double inv_count)
{
    optim->lr = lr;
    optim->inv_count = inv_count;
    optim->clip = 1;
    optim->round = first_round(optim);
    optim->vetoed = false;
    optim->grad_sq = 0;
    optim->measuring = optim->fetching = false;
    memset(optim->sums, 0, optim->sum_count * sizeof *optim->sums);
    if (in_pieces(optim))
        ddpi_pieces_clear(&optim->pieces);
}

bool ddp_optim_measures(const ddp_optim *optim)
{
    return first_round(optim) != DDPI_ROUND_NONE;
}

/* The next piece that the optimizer works on, from *segment on; false at the end of the range. */
static bool next_piece(const ddp_optim *optim, ddp_range range, int *segment, ddpi_piece *piece)
{
    for (; *segment < optim->segments.count; ++*segment) {
        const ddpi_segment *s = &optim->segments.items[*segment];
        if (s->frozen || s->hi <= range.lo)
            continue;
        if (s->lo >= range.hi)
            return false;
        size_t lo = s->lo > range.lo ? s->lo : range.lo;
        size_t hi = s->hi < range.hi ? s->hi : range.hi;
        piece->segment = s;
        piece->offset = lo;
        piece->count = hi - lo;
        piece->rate = optim->lr * s->lr_scale;
        ++*segment;
        return true;
    }
    return false;
}

static double *norms_of(ddp_optim *optim, const ddpi_segment *segment)
{
    return optim->sums + DDPI_SUM_NORMS + 2 * segment->norm;
}

/* Parameters or gradients that are all 0 have no direction of their own: they get the plain rate.
 */
static double ratio_of(ddp_optim *optim, const ddpi_segment *segment)
{
    if (segment->norm < 0)
        return 1;
    const double *sums = norms_of(optim, segment);
    double w = sqrt(sums[0]), other = sqrt(sums[1]);
    return w > 0 && other > 0 ? optim->ops->ratio(optim, segment, w, other) : 1;
}

/* The places for what is summed over the piece; all start at 0 in each round. */
static ddp_status places_of(ddp_optim *optim, const ddpi_piece *piece, double **sums_out)
{
    const ptrdiff_t index = in_pieces(optim) ? ddpi_pieces_index(&optim->pieces, piece->offset)
                                             : piece->segment - optim->segments.items;
    *sums_out = optim->measured + index * DDPI_PIECE_SUMS;
    if (optim->measuring)
        return DDP_OK;
    optim->measuring = true;
    return ddp_device_zero(optim->device, piece->stream, optim->measured, measured_bytes(optim));
}

/* The average starts as the parameters are before the first update. */
static ddp_status start_average(ddp_optim *optim, ddp_stream *stream, const float *params,
                                ddp_range range)
{
    if (optim->average == NULL || optim->steps > 0)
        return DDP_OK;
    return ddp_device_copy(optim->device, stream, optim->average + range.lo, params + range.lo,
                           (range.hi - range.lo) * sizeof(float), DDP_COPY_ON_DEVICE);
}

/* ---- steps in graphs ---- */

size_t ddp_optim_live_bytes(const ddp_optim *optim, int ranges)
{
    /* A range cuts at most one segment in two. */
    return (size_t)(optim->segments.count + ranges) * DDP_OP_LIVE_BYTES;
}

void ddp_optim_live_begin(ddp_optim *optim, const void *device)
{
    DDP_ASSERT(!ddp_optim_measures(optim) && !in_pieces(optim) && optim->steps > 0);
    optim->live = device;
    optim->live_count = 0;
}

void ddp_optim_live_end(ddp_optim *optim)
{
    optim->live = NULL;
}

size_t ddp_optim_live_write(const ddp_optim *optim, void *host)
{
    for (int i = 0; i < optim->live_count; i++) {
        const ddpi_segment *segment = optim->live_segments[i];
        const ddpi_piece piece = {
            .segment = segment, .rate = optim->lr * segment->lr_scale, .ratio = 1};
        optim->ops->live(optim, &piece, (char *)host + (size_t)i * DDP_OP_LIVE_BYTES);
    }
    return (size_t)optim->live_count * DDP_OP_LIVE_BYTES;
}

/* The piece's place among the numbers, if they are read from memory. */
static ddp_status take_live(ddp_optim *optim, ddpi_piece *piece)
{
    piece->live = NULL;
    if (optim->live == NULL)
        return DDP_OK;
    DDP_TRY(DDP_GROW(optim->live_segments, optim->live_capacity, optim->live_count));
    piece->live = optim->live + (size_t)optim->live_count * DDP_OP_LIVE_BYTES;
    optim->live_segments[optim->live_count++] = piece->segment;
    return DDP_OK;
}

ddp_status ddp_optim_update(ddp_optim *optim, ddp_stream *stream, float *params, const float *grads,
                            ddp_range range, double *grad_sq)
{
    DDP_ASSERT(range.lo <= range.hi && range.hi <= optim->length);
    if (range.lo == range.hi || optim->vetoed)
        return DDP_OK;
    if (ddp_optim_measures(optim))
        grad_sq = NULL;
    DDP_TRY(start_average(optim, stream, params, range));
    ddpi_piece piece = {.stream = stream};
    for (int s = 0; next_piece(optim, range, &s, &piece);) {
        piece.w = params + piece.offset;
        piece.grad = grads + piece.offset;
        piece.ratio = ratio_of(optim, piece.segment);
        double *sum = grad_sq;
        if (grad_sq != NULL && in_pieces(optim))
            DDP_TRY(places_of(optim, &piece, &sum));
        DDP_TRY(take_live(optim, &piece));
        DDP_TRY(optim->ops->update(optim, &piece, sum));
    }
    if (optim->average == NULL)
        return DDP_OK;
    return ddp_op_average(optim->device, stream, optim->average + range.lo, params + range.lo,
                          1 - optim->opts.ema, range.hi - range.lo);
}

void ddp_optim_end(ddp_optim *optim)
{
    if (!optim->vetoed)
        optim->steps++;
}

float *ddp_optim_average(ddp_optim *optim)
{
    return optim->steps > 0 ? optim->average : NULL;
}

/* ---- for checkpoints ---- */

ddp_optim_state ddp_optim_get_state(ddp_optim *optim)
{
    ddp_optim_state state = {.steps = optim->steps};
    for (; state.count < optim->slot_count; state.count++) {
        state.flats[state.count].name = optim->ops->slot_names[state.count];
        state.flats[state.count].values = optim->slots[state.count];
    }
    if (optim->average != NULL) {
        state.flats[state.count].name = "ema";
        state.flats[state.count++].values = optim->average;
    }
    return state;
}

void ddp_optim_set_steps(ddp_optim *optim, int64_t steps)
{
    optim->steps = steps;
}

/* ---- before the update ---- */

void ddp_optim_veto(ddp_optim *optim)
{
    if (in_pieces(optim))
        optim->pieces.sums[0] += 1;
    else
        optim->sums[DDPI_SUM_VETO] += 1;
}

/* Of the gradient, the parameters, the direction. */
static ddp_status measure_piece(ddp_optim *optim, const ddpi_piece *piece, bool counts)
{
    double *sums;
    if (!counts) /* the state moves all the same */
        return optim->ops->measure(optim, piece, NULL);
    DDP_TRY(places_of(optim, piece, &sums));
    if (optim->round == DDPI_ROUND_DIRECTION)
        return optim->ops->measure(optim, piece, sums);
    DDP_TRY(ddp_op_sum_squares(optim->device, piece->stream, piece->grad, piece->count,
                               optim->inv_count, &sums[0]));
    if (optim->ops->norms != DDPI_NORMS_GRADIENT || piece->segment->norm < 0)
        return DDP_OK;
    return ddp_op_sum_squares(optim->device, piece->stream, piece->w, piece->count, 1, &sums[1]);
}

ddp_status ddp_optim_fetch(ddp_optim *optim, ddp_stream *stream)
{
    if (!optim->measuring)
        return DDP_OK;
    optim->measuring = false;
    optim->fetching = true;
    return ddp_device_copy(optim->device, stream, optim->fetched, optim->measured,
                           measured_bytes(optim), DDP_COPY_TO_HOST);
}

/* What was fetched, in the places where the host would have added it. */
static void add_fetched(ddp_optim *optim)
{
    const bool direction = optim->round == DDPI_ROUND_DIRECTION;
    if (optim->fetching && in_pieces(optim)) {
        memcpy(optim->pieces.sums + 1, optim->fetched, measured_bytes(optim));
        optim->fetching = false;
    }
    for (int i = 0; optim->fetching && i < optim->segments.count; i++) {
        const ddpi_segment *segment = &optim->segments.items[i];
        const double *sums = optim->fetched + (ptrdiff_t)i * DDPI_PIECE_SUMS;
        if (optim->round == first_round(optim))
            optim->sums[DDPI_SUM_GRAD] += sums[0];
        if (segment->norm < 0)
            continue;
        norms_of(optim, segment)[0] += sums[1];
        norms_of(optim, segment)[1] += direction ? sums[2] : sums[0];
    }
    optim->fetching = false;
}

ddp_status ddp_optim_measure(ddp_optim *optim, ddp_stream *stream, const float *params,
                             const float *grads, ddp_range range, bool counts)
{
    bool direction = optim->round == DDPI_ROUND_DIRECTION;
    DDP_ASSERT(range.lo <= range.hi && range.hi <= optim->length);
    DDP_ASSERT(optim->round != DDPI_ROUND_NONE);
    ddpi_piece piece = {.stream = stream};
    for (int s = 0; (counts || direction) && next_piece(optim, range, &s, &piece);) {
        piece.w = (float *)params + piece.offset; /* measuring writes to the state alone */
        piece.grad = grads + piece.offset;
        DDP_TRY(measure_piece(optim, &piece, counts));
    }
    return DDP_OK;
}

double *ddp_optim_sums(ddp_optim *optim, size_t *count_out)
{
    add_fetched(optim);
    if (in_pieces(optim)) {
        *count_out = ddpi_pieces_sum_count(&optim->pieces);
        return optim->pieces.sums;
    }
    *count_out = optim->sum_count;
    return optim->sums;
}

double ddp_optim_grad_sq(const ddp_optim *optim)
{
    if (ddp_optim_measures(optim) && optim->round != first_round(optim))
        return optim->round == DDPI_ROUND_NONE ? optim->grad_sq : 0;
    return in_pieces(optim) ? ddpi_pieces_total(&optim->pieces, 0) : optim->sums[DDPI_SUM_GRAD];
}

/* The pieces' sums of the round, in the places where those of whole ranges would be. */
static void add_pieces(ddp_optim *optim)
{
    const bool direction = optim->round == DDPI_ROUND_DIRECTION;
    const ddpi_pieces *pieces = &optim->pieces;
    if (!in_pieces(optim))
        return;
    if (optim->round == first_round(optim))
        optim->sums[DDPI_SUM_GRAD] = ddpi_pieces_total(pieces, 0);
    optim->sums[DDPI_SUM_VETO] = pieces->sums[0];
    ddpi_pieces_add_norms(pieces, 1, optim->sums + DDPI_SUM_NORMS);
    ddpi_pieces_add_norms(pieces, direction ? 2 : 0, optim->sums + DDPI_SUM_NORMS + 1);
}

/* As torch.nn.utils.clip_grad_norm_ does it. */
static double clip_factor(const ddp_optim *optim, double norm)
{
    double factor = optim->opts.clip_grad_norm / (norm + 1e-6);
    return optim->opts.clip_grad_norm > 0 && factor < 1 ? factor : 1;
}

bool ddp_optim_decide(ddp_optim *optim)
{
    ddpi_round done = optim->round;
    add_pieces(optim);
    double grad_sq = optim->sums[DDPI_SUM_GRAD];
    DDP_ASSERT(done != DDPI_ROUND_NONE);
    optim->round = DDPI_ROUND_NONE;
    if (done == first_round(optim)) {
        optim->vetoed = !isfinite(grad_sq) || optim->sums[DDPI_SUM_VETO] > 0;
        optim->clip = clip_factor(optim, sqrt(grad_sq));
        optim->inv_count *= optim->clip;
        optim->grad_sq = grad_sq;
    }
    if (optim->vetoed || done == DDPI_ROUND_DIRECTION || optim->ops->norms != DDPI_NORMS_DIRECTION)
        return false;
    optim->sums[DDPI_SUM_GRAD] = 0;
    memset(optim->sums + DDPI_SUM_NORMS, 0,
           (optim->sum_count - DDPI_SUM_NORMS) * sizeof *optim->sums);
    if (in_pieces(optim))
        ddpi_pieces_clear(&optim->pieces);
    optim->round = DDPI_ROUND_DIRECTION;
    return true;
}

bool ddp_optim_vetoed(const ddp_optim *optim)
{
    return optim->vetoed;
}
