/* events.h - scalars over steps as an event file, which TensorBoard reads.
 *
 * A file is a row of records: length, its checksum, a protocol buffer (src/obs/event.proto), its
 * checksum; checksums are CRC-32C, masked. Every start of a run adds a file to its directory, and
 * says from which step on it replaces what older ones have. One writer per run (rank 0); one
 * thread. */
#ifndef DDP_EVENTS_H
#define DDP_EVENTS_H

#include "ddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tags group by what is before a slash: "train/loss". */
typedef struct ddp_scalar {
    const char *tag; /* a literal */
    double value;    /* written as a float */
} ddp_scalar;

enum { DDP_EVENTS_MAX_SCALARS = 8, DDP_EVENTS_MAX_TAG = 64 };

typedef struct ddp_events ddp_events;

/* Makes a file of a name of its own in the directory. step: the first one that will be written,
 * from
 * 1. The caller owns *events_out. */
DDP_CALL ddp_status ddp_events_open(const char *dir, int64_t step, ddp_events **events_out);
/* At most DDP_EVENTS_MAX_SCALARS. Allocates nothing. Reaches the file within seconds, if steps go
 * on. */
DDP_CALL ddp_status ddp_events_write(ddp_events *events, int64_t step, const ddp_scalar *scalars,
                                     int count);
DDP_CALL ddp_status ddp_events_flush(ddp_events *events);
/* NULL is fine. Writes what is left, as far as that can be done. */
DDP_API void ddp_events_close(ddp_events *events);

#ifdef __cplusplus
}
#endif
#endif
