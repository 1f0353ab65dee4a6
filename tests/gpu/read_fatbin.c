/* read_fatbin.c - for which architectures a library holds kernels, without NVIDIA's tools.
 *
 *   read_fatbin LIBRARY ARCHITECTURE...      as CMake has them: 80-real, 100-virtual, 100 (both)
 *
 * A fat binary is a header (magic number, its size, the size of what follows) and entries, each
 * with a header of its own: kind (1: PTX, 2: machine code), size, and the architecture's number.
 * Fails unless every fat binary in the file has all the architectures that are asked for. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 32, PTX = 1, CODE = 2, ARCH_AT = 28, ENTRY_BYTES = 64, HEADER_BYTES = 16 };

static uint64_t number(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static unsigned char *read_all(const char *path, size_t *bytes_out)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0)
        return NULL;
    const long bytes = ftell(file);
    unsigned char *data = bytes > 0 ? malloc((size_t)bytes) : NULL;
    rewind(file);
    if (data != NULL && fread(data, 1, (size_t)bytes, file) != (size_t)bytes) {
        free(data);
        data = NULL;
    }
    fclose(file);
    *bytes_out = (size_t)bytes;
    return data;
}

typedef struct have {
    uint64_t arch[MOST];
    uint64_t kind[MOST];
    int count;
} have;

/* One fat binary; false if it is cut off. */
static int read_entries(const unsigned char *at, size_t bytes, have *have_out)
{
    size_t used = number(at + 6, 2), end = used + number(at + 8, 8);
    have_out->count = 0;
    if (end > bytes)
        return 0;
    while (used + ENTRY_BYTES <= end && have_out->count < MOST) {
        const unsigned char *entry = at + used;
        have_out->kind[have_out->count] = number(entry, 2);
        have_out->arch[have_out->count++] = number(entry + ARCH_AT, 4);
        used += number(entry + 4, 4) + number(entry + 8, 8);
    }
    return 1;
}

static int holds(const have *h, uint64_t kind, uint64_t arch)
{
    for (int i = 0; i < h->count; i++)
        if (h->kind[i] == kind && h->arch[i] == arch)
            return 1;
    return 0;
}

static int check(const have *h, const char *want)
{
    const uint64_t arch = strtoull(want, NULL, 10);
    const int code = strstr(want, "-virtual") == NULL, ptx = strstr(want, "-real") == NULL;
    if ((!code || holds(h, CODE, arch)) && (!ptx || holds(h, PTX, arch)))
        return 1;
    printf("a fat binary lacks %s; it has", want);
    for (int i = 0; i < h->count; i++)
        printf(" %s %d", h->kind[i] == PTX ? "PTX" : "code", (int)h->arch[i]);
    printf("\n");
    return 0;
}

int main(int argc, char **argv)
{
    static const unsigned char magic[] = {0x50, 0xed, 0x55, 0xba, 1, 0};
    size_t bytes = 0;
    int found = 0, good = 1;
    unsigned char *data = argc > 2 ? read_all(argv[1], &bytes) : NULL;
    if (data == NULL) {
        printf("usage: read_fatbin LIBRARY ARCHITECTURE...\n");
        return 1;
    }
    for (size_t i = 0; i + HEADER_BYTES < bytes; i += 8) {
        have h;
        if (memcmp(data + i, magic, sizeof magic) != 0 || !read_entries(data + i, bytes - i, &h))
            continue;
        found++;
        for (int want = 2; want < argc; want++)
            good &= check(&h, argv[want]);
    }
    free(data);
    printf("%d fat binaries\n", found);
    return found > 0 && good ? 0 : 1;
}
