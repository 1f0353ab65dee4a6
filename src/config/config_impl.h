/* config_impl.h - what the parts of config.h's implementation share. */
#ifndef DDP_CONFIG_CONFIG_IMPL_H
#define DDP_CONFIG_CONFIG_IMPL_H

#include "ddp/config.h"

enum { DDPI_CONFIG_GROUPS = 8 };

/* The option tables, with config as their target. */
void ddpi_config_groups(ddp_config *config, ddp_option_group groups[DDPI_CONFIG_GROUPS]);

/* "1x28x28" */
DDP_INNER ddp_status ddpi_config_parse_shape(const char *text, ddp_shape *shape_out);
/* "0.5/0.25" or "0.4,0.5,0.6/0.2,0.2,0.2" */
DDP_INNER ddp_status ddpi_config_parse_normalize(const char *text, ddp_normalize *normalize_out);
/* "90", "15m", "1h30m", "2-12:00:00" (as Slurm writes times), in seconds. */
DDP_INNER ddp_status ddpi_config_parse_duration(const char *text, double *seconds_out);

/* "dynamic", or a number to begin with. */
DDP_INNER ddp_status ddpi_config_parse_scale(const char *text, double *scale_out, bool *grows_out);

/* --bucket-cap-mb: "auto", or a number of MiB, which auto leaves as it is. */
DDP_INNER ddp_status ddpi_config_parse_buckets(const char *text, bool *auto_out, double *mb_out);

/* Rules that need neither ranks nor data. */
DDP_INNER ddp_status ddpi_config_check(const ddp_config *config);

/* The form of --rank-weights; NULL is fine. */
DDP_INNER ddp_status ddpi_config_check_weights(const char *text);
/* --accumulate, --micro-batch, --logical-ranks and --rank-weights: the number of logical shards,
 * and where ranks have equal shares that of a rank. The global batch is known. */
DDP_INNER ddp_status ddpi_config_resolve_shards(ddp_config *config, int world);

#endif
