/* ledger.c - the order-free checksum of used samples. The mix is SplitMix64's finalizer (Steele,
 * Lea and Flood, OOPSLA 2014) over epoch and index, so that neighbours differ in half of their
 * bits. Pure functions. */
#include "ddp/sampler.h"

enum { BLOCK = 256 };

/* Odd, so that no two of 2^64 epochs share an offset. */
#define EPOCH_STRIDE UINT64_C(0xd1342543de82ef95)

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

void ddp_ledger_add(ddp_ledger *ledger, int64_t epoch, const int64_t *indices, int64_t count)
{
    const uint64_t key = mix(((uint64_t)epoch + 1) * EPOCH_STRIDE);
    for (int64_t i = 0; i < count; i++) {
        const uint64_t word = mix(key ^ ((uint64_t)indices[i] + UINT64_C(0x9e3779b97f4a7c15)));
        ledger->sum += word;
        ledger->parity ^= word;
    }
    ledger->count += count;
}

void ddp_ledger_join(ddp_ledger *ledger, const ddp_ledger *other)
{
    ledger->sum += other->sum;
    ledger->parity ^= other->parity;
    ledger->count += other->count;
}

bool ddp_ledger_equal(const ddp_ledger *a, const ddp_ledger *b)
{
    return a->sum == b->sum && a->parity == b->parity && a->count == b->count;
}

ddp_ledger ddp_ledger_expect(const ddp_sampler *sampler, int64_t epoch, int64_t steps)
{
    int64_t indices[BLOCK], end = 0;
    ddp_ledger ledger = {0};
    if (steps > 0)
        end = (steps - 1) * sampler->batch + ddp_sampler_step_count(sampler, steps - 1);
    for (int64_t first = 0; first < end; first += BLOCK) {
        const int64_t count = end - first < BLOCK ? end - first : BLOCK;
        ddp_sampler_indices(sampler, epoch, first, count, indices);
        ddp_ledger_add(&ledger, epoch, indices, count);
    }
    return ledger;
}
