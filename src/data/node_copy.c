/* node_copy.c - decoding once per node, step by step.
 *
 * A node's first rank decodes, the others only look at the result. All ranks take each step,
 * whatever failed before on one of them:
 *   1. first ranks open their files and read the headers; all agree
 *   2. rank 0's header goes to everybody; another node's must equal it
 *   3. all allocate the shared memory; first ranks decode and check
 *   4. with several nodes, rank 0's hash of the data goes to everybody; all agree
 * so a node whose files are another version is refused instead of training on other data.
 *
 * Where shared memory is too small (containers), every rank decodes a copy of its own in step 3. */
#include "data/node_copy.h"

#include "ddp/fs.h"
#include "ddp/log.h"
#include "ddp/memory.h"

#define NAME_BYTES 9000

/* One rank's part in it. */
typedef struct opening {
    const ddpi_node_source *source;
    ddp_comm *comm;
    void *header;
    bool decodes;
    size_t bytes;
    ddpi_node_copy copy;
} opening;

/* node_alloc has the same verdict on all ranks, so all of them turn to copies of their own or none.
 */
static ddp_status allocate(opening *o, bool *own_out)
{
    void *memory = NULL;
    bool alone = ddp_comm_node_count(o->comm) == ddp_comm_world(o->comm);
    ddp_status st = ddp_comm_node_alloc(o->comm, o->bytes, &memory);
    *own_out = st == DDP_ERR_NOMEM && !alone;
    if (*own_out) {
        if (ddp_comm_rank(o->comm) == 0)
            ddp_warn("every rank decodes a data set of its own: %s", ddp_status_message());
        st = ddp_large_alloc(o->bytes, &memory);
        if (st == DDP_OK)
            o->copy.own_bytes = o->bytes;
    }
    o->copy.memory = memory;
    return st;
}

/* Opens on the ranks that had nothing to decode until there was no memory to share. */
static ddp_status open_late(opening *o)
{
    void *header = NULL;
    DDP_TRY(ddp_alloc_bytes(1, o->source->header_bytes, &header));
    ddp_status st = o->source->open(o->source->self, header);
    ddp_free(header);
    o->decodes = st == DDP_OK;
    return st;
}

static ddp_status decode(opening *o)
{
    DDP_TRY(o->source->check(o->source->self, o->header));
    return o->source->decode(o->source->self, o->copy.memory);
}

/* Who decoded for himself must have got what rank 0 got. */
static ddp_status compare(const opening *o, ddp_status *mine)
{
    uint64_t own = 0, hash;
    char name[NAME_BYTES];
    bool decoded = o->decodes && *mine == DDP_OK;
    if (decoded)
        own = ddp_hash64(o->copy.memory, o->bytes);
    hash = own;
    DDP_TRY(ddp_comm_broadcast(o->comm, 0, &hash, sizeof hash));
    if (!decoded || own == hash)
        return DDP_OK;
    o->source->name(o->source->self, name, sizeof name);
    *mine = DDP_FAIL(DDP_ERR_MISMATCH,
                     "%s differ from rank 0's: their data has the hash %016llx, expected %016llx",
                     name, (unsigned long long)own, (unsigned long long)hash);
    return DDP_OK;
}

/* Step 2 to 4. On failure o->copy may have memory; the caller frees it. */
static ddp_status fill(opening *o)
{
    bool own;
    DDP_TRY(ddp_comm_broadcast(o->comm, 0, o->header, o->source->header_bytes));
    o->bytes = o->source->bytes(o->source->self, o->header);
    ddp_status mine = allocate(o, &own);
    if (mine == DDP_OK && own && !o->decodes)
        mine = open_late(o);
    if (mine == DDP_OK && o->decodes)
        mine = decode(o);
    if (own || ddp_comm_node_count(o->comm) > 1)
        DDP_TRY(compare(o, &mine));
    return ddp_comm_agree(o->comm, mine, "reading the data set");
}

ddp_status ddpi_node_copy_open(const ddpi_node_source *source, ddp_comm *comm, void *header,
                               ddpi_node_copy *copy_out)
{
    opening o = {.source = source, .comm = comm, .header = header};
    o.decodes = ddp_comm_node_rank(comm) == 0; /* rank 0 is its node's first */
    ddp_status mine = o.decodes ? source->open(source->self, header) : DDP_OK;
    DDP_TRY(ddp_comm_agree(comm, mine, "opening the data set"));
    ddp_status st = fill(&o);
    if (st != DDP_OK)
        ddpi_node_copy_close(&o.copy, comm);
    else
        *copy_out = o.copy;
    return st;
}

void ddpi_node_copy_close(ddpi_node_copy *copy, ddp_comm *comm)
{
    if (copy->own_bytes > 0)
        ddp_large_free(copy->memory, copy->own_bytes);
    else
        ddp_comm_node_free(comm, copy->memory);
    *copy = (ddpi_node_copy){0};
}
