/* predict.h - the step of worlds that nobody has at hand: what ddp_bench predict adds up.
 *
 * A step of n ranks is the slowest rank's forward and backward, what of the sums nothing hides
 * (ddp/cost.h), and the update. Formulas are of the textbook kind: a message of S bytes takes
 * a + S/B, and
 *
 *   ring                   2(n-1) a + 2 (n-1)/n S/B     (Patarasuk, Yuan 2009)
 *   tree (binomial)        2 ceil(log2 n) (a + S/B)
 *   halving and doubling   2 log2 n a + 2 (n-1)/n S/B   (Rabenseifner 2004); where n is no power of
 *                          two, ranks beyond the largest one hand theirs over first and get the
 *                          result last: 2 (a + S/B) more
 *
 * With g ranks on each of h hosts, two levels are a ring inside (reduce-scatter, all-gather) and
 * the algorithm over h between. Flat, a ring passes the link with all its n - 1 pieces, and is as
 * fast as its slowest neighbours, be they on two hosts or on one, while trees and halving by
 * distance 1, 2, 4, ... have their first log2 g rounds inside a host: as many bytes as on two
 * levels.
 *
 * Pure arithmetic; seconds and bytes. */
#ifndef DDP_TOOLS_BENCH_PREDICT_H
#define DDP_TOOLS_BENCH_PREDICT_H

#include "ddp/cost.h"
#include "tools/bench/bench_util.h"

/* ---- sums ---- */

typedef enum ddpi_sum_algo {
    DDPI_SUM_RING,
    DDPI_SUM_TREE,
    DDPI_SUM_RHD,
    DDPI_SUM_BEST /* whichever is fastest for a size */
} ddpi_sum_algo;

/* A sum of n ranks: so many latencies, and so many times its bytes through a link. */
typedef struct ddpi_sum_shape {
    double latencies, volumes;
} ddpi_sum_shape;
/* algo: not BEST. */
ddpi_sum_shape ddpi_sum_shape_of(ddpi_sum_algo algo, int64_t ranks);

/* What carries messages. */
typedef struct ddpi_sum_net {
    ddp_cost_curve link;      /* between hosts: of a message, or of a measured sum */
    ddpi_sum_shape reference; /* that the curve is a sum of this shape; a message is {1, 1} */
    double local_latency, local_bytes_per_second; /* inside a host */
    int64_t per_host;                             /* ranks */
} ddpi_sum_net;
/* A net with a link of a latency and a rate. */
ddpi_sum_net ddpi_sum_net_line(double latency, double bytes_per_second);
/* The time of a sum over its size. */
ddp_cost_curve ddpi_sum_curve(const ddpi_sum_net *net, ddpi_sum_algo algo, bool two_levels,
                              int64_t ranks);

/* ---- stragglers ---- */

/* The expected largest of n normal numbers with mean 0 and deviation 1, over `draws` draws of the
 * generator at `seed`. */
double ddpi_slowest(int64_t ranks, uint64_t seed, int draws);

/* ---- a step ---- */

/* What one rank takes alone. */
typedef struct ddpi_profile {
    char model[64];
    int count;
    double *bytes, *ready; /* [count], as of ddp_cost_step */
    double forward, backward, update;
} ddpi_profile;
/* Reads layers.json (ddp_train --bucket-cap-mb auto). The caller frees it. */
DDP_INNER ddp_status ddpi_profile_load(const char *path, ddpi_profile *profile_out);
void ddpi_profile_free(ddpi_profile *profile);
/* All computing takes this many times less. */
void ddpi_profile_speed_up(ddpi_profile *profile, double speed);

typedef struct ddpi_scene {
    const ddpi_profile *profile;
    const ddpi_sum_net *net;
    ddpi_sum_algo algo;
    bool two_levels;
    int64_t ranks;
    double first_bytes, cap_bytes; /* of buckets; cap_bytes 0: the best cut */
    int64_t accumulate;            /* micro-batches before a sum */
    double shrink;                 /* what is sent, over its size in f32 */
    double spread;                 /* of a rank's computing: deviation over mean */
    uint64_t seed;
} ddpi_scene;

typedef struct ddpi_outlook {
    double step, alone; /* of these ranks; of one rank for as many samples of its own */
    double efficiency;  /* alone / step */
    double straggling, comm, exposed;
    int buckets;
} ddpi_outlook;
DDP_INNER ddp_status ddpi_foresee(const ddpi_scene *scene, ddpi_outlook *outlook_out);

/* ---- the subcommand ---- */

enum { DDPI_PREDICT_RANKS = 32, DDPI_PREDICT_LINKS = 8 };

typedef struct ddpi_predict_opts {
    const char *layers, *curve, *ranks, *links, *cap, *spread;
    int algo, curve_algo; /* ddpi_sum_algo */
    bool two_levels, bf16;
    int64_t per_host, accumulate, seed;
    double latency_us, local_latency_us, local_gbs, link_share, first_mb, speed;
    ddpi_bench_out out;
} ddpi_predict_opts;

typedef struct ddpi_predict_link {
    char name[32];
    ddpi_sum_net net;
} ddpi_predict_link;

typedef struct ddpi_prediction {
    ddpi_predict_opts opts;
    ddpi_profile profile;
    double spread, cap_bytes;
    ddpi_predict_link links[DDPI_PREDICT_LINKS];
    int link_count;
    int64_t ranks[DDPI_PREDICT_RANKS];
    int rank_count;
    ddpi_outlook *outlooks; /* [link_count][rank_count] */
} ddpi_prediction;

ddpi_scene ddpi_predict_scene(const ddpi_prediction *prediction, int link, int64_t ranks);
DDP_INNER ddp_status ddpi_predict_report(const ddpi_prediction *prediction, ddpi_bench_out *out);

#endif
