/* cost.h - what communication costs: its time over its size, and how much of a step's lies open.
 *
 * Pure arithmetic over measured or given numbers, shared by the choice of buckets at a run's start
 * and by predictions for worlds that nobody has. Times in seconds, sizes in bytes. Local; any
 * thread. */
#ifndef DDP_COST_H
#define DDP_COST_H

#include "ddp/json.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the time of one communication ---- */

typedef struct ddp_cost_point {
    double bytes, seconds;
} ddp_cost_point;

enum { DDP_COST_MAX_POINTS = 64 };

/* Points by size, none of them faster than a smaller one. */
typedef struct ddp_cost_curve {
    int count;
    ddp_cost_point points[DDP_COST_MAX_POINTS];
    int ranks, hosts; /* that took part; 0: unknown */
} ddp_cost_curve;

/* Adds a measured point, or replaces that of the same size. A point that is faster than a smaller
 * one is noise, and gets that one's time, whichever comes first. Without effect when the curve is
 * full. */
DDP_API void ddp_cost_curve_add(ddp_cost_curve *curve, double bytes, double seconds);
/* A latency, then so many bytes a second. */
DDP_API ddp_cost_curve ddp_cost_curve_line(double latency, double bytes_per_second);
/* Between two points on the straight line; below the first its time; beyond the last one on the
 * line through the last two. A single point is a rate without latency beyond itself. 0 for an empty
 * curve. */
DDP_API double ddp_cost_seconds(const ddp_cost_curve *curve, double bytes);
/* {"points":[{"bytes":N,"seconds":X},...],"ranks":N,"hosts":N}; other keys are passed over.
 * DDP_ERR_FORMAT names `what` and what is wrong. */
DDP_CALL ddp_status ddp_cost_curve_read(const ddp_json *object, const char *what,
                                        ddp_cost_curve *curve_out);
DDP_CALL ddp_status ddp_cost_curve_load(const char *path, ddp_cost_curve *curve_out);
/* Sets these keys of an object. */
DDP_CALL ddp_status ddp_cost_curve_write(const ddp_cost_curve *curve, ddp_json *object);

/* ---- a step's buckets ---- */

/* One backward and the communication that follows from it. Arrays are borrowed. */
typedef struct ddp_cost_step {
    int count;           /* pieces of gradient (parameters), in the order of the flat buffer */
    const double *bytes; /* [count] */
    const double *ready; /* [count]: complete so long after backward has begun */
    double backward;     /* how long that takes; no `ready` is later */
    /* One communication after the other. */
    const ddp_cost_curve *curve;
    /* What follows for each bucket when all are through, and nothing hides; NULL: nothing. The best
     * cut is sought without it, since it hardly depends on the cut. */
    const ddp_cost_curve *publish;
    /* It goes on while the rank computes. false: the rank that needs it carries it out itself, so
     * nothing hides it. */
    bool hidden;
} ddp_cost_step;

/* Updates are left out. Those of buckets that come early are made within backward, and delay what
 * is behind them as much as the whole; the others hide a little of what is still under way, which
 * is forgone here. */
typedef struct ddp_cost_open {
    double comm;    /* all communications, one after the other */
    double exposed; /* from the end of backward to that of the last one, publications included */
    double end;     /* from the start of backward to the end of both */
} ddp_cost_open;

/* What a cut costs: bucket b has the pieces ends[b-1] .. ends[b]-1, and the last end is count. A
 * bucket starts when its last piece is ready and the bucket before it is through. */
DDP_API ddp_cost_open ddp_cost_cut(const ddp_cost_step *step, const int *ends, int buckets);
/* The cut by size: a bucket ends with the piece that brings it to its cap or above. ends has room
 * for `count`; returns the number of buckets. */
DDP_API int ddp_cost_cut_by_size(const ddp_cost_step *step, double first_bytes, double cap_bytes,
                                 int *ends);
/* The cut that leaves the least exposed, of those within `slack` seconds of that the one with the
 * fewest buckets; never worse than the cut `other` (of other_buckets; NULL: none). ends has room
 * for `count`. */
DDP_CALL ddp_status ddp_cost_best_cut(const ddp_cost_step *step, double slack, const int *other,
                                      int other_buckets, int *ends, int *buckets_out);
/* The cut to be taken in place of `other`: the best one if communications took a quarter longer,
 * unless that costs something. The fewest buckets that are soon enough would lie on the edge, where
 * a bucket that comes a little later than measured is exposed as a whole. */
DDP_CALL ddp_status ddp_cost_choose_cut(const ddp_cost_step *step, const int *other,
                                        int other_buckets, int *ends, int *buckets_out);

#ifdef __cplusplus
}
#endif
#endif
