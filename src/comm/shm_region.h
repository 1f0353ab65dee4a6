/* shm_region.h - POSIX shared memory between the processes of one node.
 *
 * One process creates a region and hands its name (any way it likes) to the others, which attach.
 * As soon as all have, the creator removes the name: the memory then lives only as long as somebody
 * maps it, and nothing stays behind after kill -9. Names are random and unguessable. */
#ifndef DDPI_SHM_REGION_H
#define DDPI_SHM_REGION_H

#include "ddp/status.h"

#define DDPI_SHM_NAME_BYTES 48

typedef struct ddpi_shm_region {
    char name[DDPI_SHM_NAME_BYTES]; /* "" once removed, or in a process that attached */
    void *base;                     /* page aligned, zeroed */
    size_t bytes;
} ddpi_shm_region;

/* Local. Creates and maps a region. All of its memory is reserved here: DDP_ERR_NOMEM if the shared
 * memory file system cannot hold it. */
DDP_INNER ddp_status ddpi_shm_create(size_t bytes, ddpi_shm_region *region_out);
/* Local. Maps a region that another process created, with the same size. */
DDP_INNER ddp_status ddpi_shm_attach(const char *name, size_t bytes, ddpi_shm_region *region_out);
/* Local. Removes the name; no effect if that is done already. */
void ddpi_shm_unlink(ddpi_shm_region *region);
/* Local. Unmaps, and removes the name if it is still there. A zeroed region is fine. */
void ddpi_shm_detach(ddpi_shm_region *region);
/* Local. Takes the page faults of [offset, offset + bytes) now, without changing what is there.
 * Each rank touches its own part: a first touch is expensive. */
void ddpi_shm_touch(const ddpi_shm_region *region, size_t offset, size_t bytes);
/* Local. bytes rounded up to whole pages. */
size_t ddpi_shm_page_round(size_t bytes);

#endif
