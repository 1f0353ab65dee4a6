/* hash.c - the checksums of fs.h: XXH3 with 64 bits, through xxhash. One thread per hasher. */
#include "ddp/fs.h"

#include <xxhash.h>

#include "ddp/memory.h"

struct ddp_hasher {
    XXH3_state_t *state;
};

uint64_t ddp_hash64(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

ddp_status ddp_hasher_create(ddp_hasher **hasher_out)
{
    ddp_hasher *hasher;

    DDP_TRY(DDP_ALLOC(hasher, 1));
    hasher->state = XXH3_createState();
    if (hasher->state == NULL || XXH3_64bits_reset(hasher->state) != XXH_OK) {
        ddp_hasher_destroy(hasher);
        return DDP_FAIL(DDP_ERR_NOMEM, "no memory for a checksum");
    }
    *hasher_out = hasher;
    return DDP_OK;
}

void ddp_hasher_update(ddp_hasher *hasher, const void *data, size_t bytes)
{
    if (bytes > 0)
        DDP_ASSERT(XXH3_64bits_update(hasher->state, data, bytes) == XXH_OK);
}

uint64_t ddp_hasher_digest(const ddp_hasher *hasher)
{
    return XXH3_64bits_digest(hasher->state);
}

void ddp_hasher_destroy(ddp_hasher *hasher)
{
    if (hasher == NULL)
        return;
    XXH3_freeState(hasher->state);
    ddp_free(hasher);
}
