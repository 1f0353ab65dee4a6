/* largest.c - selection by counting: magnitudes as whole numbers of 31 bits, the upper 11 first.
 *
 * One pass counts all elements by their upper bits, which says in what class the smallest of those
 * wanted is. A second one keeps the places of that class and above. Only these few are then looked
 * at again, for the next 10 bits and for the last. Three times no element decides by a comparison
 * that the processor cannot foresee. */
#include "sync/largest.h"

#include <string.h>

#include "ddp/memory.h"

enum { UPPER_BITS = 11, LOWER_BITS = 10, CLASSES = 1 << UPPER_BITS };

struct ddpi_largest {
    uint32_t *places; /* [longest] */
    size_t counts[CLASSES];
};

ddp_status ddpi_largest_create(size_t longest, ddpi_largest **largest_out)
{
    ddpi_largest *l;
    DDP_TRY(DDP_ALLOC(l, 1));
    const ddp_status st = DDP_ALLOC(l->places, longest);
    if (st != DDP_OK) {
        ddp_free(l);
        return st;
    }
    *largest_out = l;
    return DDP_OK;
}

void ddpi_largest_destroy(ddpi_largest *largest)
{
    if (largest == NULL)
        return;
    ddp_free(largest->places);
    ddp_free(largest);
}

static uint32_t magnitude_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffff;
}

/* The highest class such that it and those above have `wanted` elements; *above_out: those above.
 */
static uint32_t class_of(const size_t *counts, uint32_t classes, size_t wanted, size_t *above_out)
{
    size_t above = 0;
    uint32_t class = classes - 1;
    while (above + counts[class] < wanted)
        above += counts[class --];
    *above_out = above;
    return class;
}

/* Of the kept places, which all are in classes at or above `floor` >> shift: the floor's next bits.
 */
static uint32_t refine(ddpi_largest *l, const float *values, size_t kept, uint32_t floor, int shift,
                       size_t *wanted)
{
    const int next = shift - LOWER_BITS;
    size_t above;
    memset(l->counts, 0, sizeof l->counts);
    for (size_t i = 0; i < kept; i++) {
        const uint32_t magnitude = magnitude_of(values[l->places[i]]);
        if (magnitude >> shift == floor >> shift)
            l->counts[magnitude >> next & ((1 << LOWER_BITS) - 1)]++;
    }
    const uint32_t class = class_of(l->counts, 1 << LOWER_BITS, *wanted, &above);
    *wanted -= above;
    return floor | class << next;
}

const uint32_t *ddpi_largest_find(ddpi_largest *l, const float *values, size_t length, size_t count)
{
    enum { SHIFT = 31 - UPPER_BITS };
    size_t above, kept = 0, out = 0;
    DDP_ASSERT(count >= 1 && count <= length);
    memset(l->counts, 0, sizeof l->counts);
    for (size_t i = 0; i < length; i++)
        l->counts[magnitude_of(values[i]) >> SHIFT]++;
    uint32_t floor = class_of(l->counts, CLASSES, count, &above) << SHIFT;
    for (size_t i = 0; i < length; i++) {
        l->places[kept] = (uint32_t)i;
        kept += magnitude_of(values[i]) >= floor;
    }
    size_t wanted = count - above; /* of the class that decides; in the end: of equal ones */
    floor = refine(l, values, kept, floor, SHIFT, &wanted);
    floor = refine(l, values, kept, floor, SHIFT - LOWER_BITS, &wanted);
    for (size_t i = 0; i < kept; i++) {
        const uint32_t magnitude = magnitude_of(values[l->places[i]]);
        if (magnitude < floor || (magnitude == floor && wanted == 0))
            continue;
        wanted -= magnitude == floor;
        l->places[out++] = l->places[i];
    }
    DDP_ASSERT(out == count);
    return l->places;
}
