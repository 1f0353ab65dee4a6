/* optim_impl.h - the table behind an optimizer, and the pieces that it is handed. */
#ifndef DDP_OPTIM_IMPL_H
#define DDP_OPTIM_IMPL_H

#include "ddp/optim.h"
#include "optim/pieces.h"
#include "optim/segments.h"

/* The part of a segment that lies in a range. */
typedef struct ddpi_piece {
    ddp_stream *stream;
    const ddpi_segment *segment;
    float *w;
    const float *grad;
    size_t offset, count; /* in the flat buffers */
    double rate;          /* the segment's learning rate */
    double ratio;         /* of an adaptive parameter: what its rate is multiplied by */
    const void *live;     /* device: the numbers of the step, when the work is done; NULL: now */
} ddpi_piece;

/* What an optimizer must know about whole parameters before it updates. */
typedef enum ddpi_norms {
    DDPI_NORMS_NONE,
    DDPI_NORMS_GRADIENT, /* of parameters and gradients */
    DDPI_NORMS_DIRECTION /* of parameters and what they would move by: after the gradient is final
                          */
} ddpi_norms;

enum { DDPI_OPTIM_MAX_SLOTS = 2 };

typedef struct ddpi_optim_ops {
    const char *name;
    ddpi_norms norms;
    /* Whether the options make sense; DDP_ERR_USAGE otherwise. */
    ddp_status (*check)(const ddp_optim_opts *opts);
    /* Flat state buffers that the rule needs with these options. */
    int (*slots)(const ddp_optim_opts *opts);
    const char *slot_names[DDPI_OPTIM_MAX_SLOTS]; /* in files */
    /* DIRECTION only: moves the state and adds the squares of gradient, parameters and direction to
     * sums[0 .. 2]. */
    ddp_status (*measure)(ddp_optim *optim, const ddpi_piece *piece, double *sums);
    /* With norms: what a parameter's rate is multiplied by; both norms are above 0. */
    double (*ratio)(const ddp_optim *optim, const ddpi_segment *segment, double w, double other);
    ddp_status (*update)(ddp_optim *optim, const ddpi_piece *piece, double *grad_sq);
    /* What update() with piece->live would read there; NULL with norms. */
    void (*live)(const ddp_optim *optim, const ddpi_piece *piece, void *live_out);
} ddpi_optim_ops;

/* Places in sums; from NORMS on two for each adaptive parameter: of itself, of the other. */
enum { DDPI_SUM_GRAD, DDPI_SUM_VETO, DDPI_SUM_NORMS };

typedef enum ddpi_round { DDPI_ROUND_NONE, DDPI_ROUND_GRADIENT, DDPI_ROUND_DIRECTION } ddpi_round;

struct ddp_optim {
    const ddpi_optim_ops *ops;
    ddp_optim_opts opts; /* without the groups' text */
    ddp_device *device;
    size_t length; /* of the flat buffers, in elements */
    float *slots[DDPI_OPTIM_MAX_SLOTS];
    int slot_count;
    float *average; /* NULL: none */
    ddpi_segments segments;
    ddpi_pieces pieces;   /* none, unless sums must not depend on who takes them */
    int64_t steps;        /* finished */
    double lr, inv_count; /* inv_count has the clipping in it, once that is known */
    double clip;          /* factor of the gradients in this step */
    double *sums;
    size_t sum_count;
    /* Device memory: what a round measures, DDPI_PIECE_SUMS for each segment or piece; and the
     * host's copy that sums are made of. */
    double *measured, *fetched;
    bool measuring, fetching; /* measured is this round's; fetched is on its way */
    double grad_sq;           /* what the first round came to */
    ddpi_round round;
    bool vetoed;
    const char *live; /* device memory that updates read their numbers from; NULL: they do not */
    const ddpi_segment **live_segments; /* of the updates, in the order of their numbers */
    int live_count, live_capacity;
};

extern const ddpi_optim_ops ddpi_optim_sgd, ddpi_optim_adamw, ddpi_optim_lars, ddpi_optim_lamb;

#endif
