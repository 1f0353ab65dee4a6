/* node_copy.h - data that is decoded once per node into memory that the node's ranks share.
 *
 * A format says how files are opened and decoded; the steps that all ranks take together, whatever
 * fails on one of them, are here. One thread per rank. */
#ifndef DDPI_DATA_NODE_COPY_H
#define DDPI_DATA_NODE_COPY_H

#include "ddp/comm.h"

/* What a format does; all of it is local. `self` is its own, on every rank; open, check, decode and
 * name are called on ranks that decode. */
typedef struct ddpi_node_source {
    void *self;
    size_t header_bytes;
    /* Opens the files and writes the header: what rank 0 tells everybody about the data, plain
     * bytes without pointers. */
    ddp_status (*open)(void *self, void *header_out);
    /* Whether the files opened have rank 0's header; else DDP_ERR_MISMATCH. */
    ddp_status (*check)(void *self, const void *header);
    /* Size of the data. */
    size_t (*bytes)(const void *self, const void *header);
    ddp_status (*decode)(void *self, uint8_t *memory);
    /* Names the files, for messages. */
    void (*name)(const void *self, char *text, size_t text_bytes);
} ddpi_node_source;

typedef struct ddpi_node_copy {
    uint8_t *memory;
    size_t own_bytes; /* 0; else memory is this rank's own, and so large */
} ddpi_node_copy;

/* Collective, with the same verdict on all ranks; it begins with a ddp_comm_agree(), so a rank that
 * has failed before may call that instead. On success *header (of header_bytes) is rank 0's on
 * every rank, and the caller closes *copy_out. The source's files stay open either way. */
DDP_INNER ddp_status ddpi_node_copy_open(const ddpi_node_source *source, ddp_comm *comm,
                                         void *header, ddpi_node_copy *copy_out);
/* Collective. */
void ddpi_node_copy_close(ddpi_node_copy *copy, ddp_comm *comm);

#endif
