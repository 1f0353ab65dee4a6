/* shard_manifest.c - reads MANIFEST.json; shards.h says what it holds.
 *
 * Each number has a range, and the counts of shards and of classes must both add up to that of the
 * images. A shard's name may not lead out of the folder. Keys that are not asked for are left
 * alone. No state. */
#include "data/shard_manifest.h"

#include <inttypes.h>
#include <string.h>

#include "ddp/memory.h"

/* Of images and bytes: nothing that is counted by them overflows. */
#define COUNT_MAX (INT64_C(1) << 50)

static ddp_status get_int(const ddp_json *object, const char *what, const char *key,
                          const int64_t range[2], int64_t *value_out)
{
    const ddp_json *value = ddp_json_get(object, key);
    if (value == NULL || !ddp_json_as_int(value, value_out) || *value_out < range[0] ||
        *value_out > range[1])
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: \"%s\" is missing or no whole number from %" PRId64 " to %" PRId64,
                        what, key, range[0], range[1]);
    return DDP_OK;
}

static ddp_status get_list(const ddp_json *object, const char *what, const char *key, int64_t limit,
                           const ddp_json **list_out, int64_t *length_out)
{
    const ddp_json *list = ddp_json_get(object, key);
    int64_t length = list != NULL && ddp_json_is_array(list) ? (int64_t)ddp_json_length(list) : 0;
    if (length < 1 || length > limit)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: \"%s\" is missing or no list of 1 to %" PRId64, what,
                        key, limit);
    *list_out = list;
    *length_out = length;
    return DDP_OK;
}

static ddp_status check_format(const ddp_json *json, const char *what)
{
    static const int64_t version[2] = {DDP_SHARD_VERSION, DDP_SHARD_VERSION};
    const ddp_json *member = ddp_json_is_object(json) ? ddp_json_get(json, "format") : NULL;
    const char *format;
    int64_t found;
    if (member == NULL || !ddp_json_as_string(member, &format) || strcmp(format, "ddp-shards") != 0)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: is no object with \"format\": \"ddp-shards\"", what);
    return get_int(json, what, "version", version, &found);
}

static ddp_status read_sizes(ddpi_shard_manifest *m, const char *what)
{
    static const int64_t counts[2] = {1, COUNT_MAX}, sides[2] = {1, DDP_SHARD_MAX_SIDE};
    static const int64_t channels[2] = {1, DDP_SHARD_MAX_CHANNELS};
    DDP_TRY(get_int(m->json, what, "images", counts, &m->images));
    DDP_TRY(get_int(m->json, what, "channels", channels, &m->channels));
    DDP_TRY(get_int(m->json, what, "min_height", sides, &m->min_height));
    DDP_TRY(get_int(m->json, what, "max_height", sides, &m->max_height));
    DDP_TRY(get_int(m->json, what, "min_width", sides, &m->min_width));
    DDP_TRY(get_int(m->json, what, "max_width", sides, &m->max_width));
    if (m->min_height > m->max_height || m->min_width > m->max_width)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: a smallest size is over the largest", what);
    return DDP_OK;
}

static ddp_status read_classes(ddpi_shard_manifest *m, const char *what)
{
    const ddp_json *names = NULL, *images = NULL;
    int64_t count = 0, total = 0;
    DDP_TRY(get_list(m->json, what, "classes", DDP_SHARD_MAX_CLASSES, &names, &m->class_count));
    DDP_TRY(get_list(m->json, what, "class_images", DDP_SHARD_MAX_CLASSES, &images, &count));
    if (count != m->class_count)
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: \"class_images\" has %" PRId64 " numbers for %" PRId64 " classes",
                        what, count, m->class_count);
    DDP_TRY(DDP_ALLOC(m->classes, (size_t)count));
    DDP_TRY(DDP_ALLOC(m->class_images, (size_t)count));
    for (int64_t i = 0; i < count; i++) {
        int64_t of_class;
        if (!ddp_json_as_string(ddp_json_at(names, (size_t)i), &m->classes[i]))
            return DDP_FAIL(DDP_ERR_FORMAT, "%s: class %" PRId64 " has no string as name", what, i);
        if (!ddp_json_as_int(ddp_json_at(images, (size_t)i), &of_class) || of_class < 0 ||
            of_class > m->images - total)
            return DDP_FAIL(DDP_ERR_FORMAT,
                            "%s: the images of class %" PRId64 " are no whole number, or over all "
                            "%" PRId64 " images with those of the classes before",
                            what, i, m->images);
        m->class_images[i] = of_class;
        total += of_class;
    }
    if (total != m->images)
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: the classes have %" PRId64 " images, expected %" PRId64, what, total,
                        m->images);
    return DDP_OK;
}

static bool read_hex(const char *text, uint64_t *value_out)
{
    uint64_t value = 0;
    if (strlen(text) != 16)
        return false;
    for (; *text != 0; text++) {
        static const char digits[] = "0123456789abcdef";
        const char *at = strchr(digits, *text);
        if (at == NULL)
            return false;
        value = value << 4 | (uint64_t)(at - digits);
    }
    *value_out = value;
    return true;
}

static ddp_status read_shard(const ddp_json *json, const char *what, int64_t index,
                             ddpi_shard_file *shard)
{
    static const int64_t images[2] = {1, DDP_SHARD_MAX_COUNT}, bytes[2] = {1, COUNT_MAX};
    const ddp_json *name = NULL, *hash = NULL;
    const char *digits;
    if (ddp_json_is_object(json)) {
        name = ddp_json_get(json, "file");
        hash = ddp_json_get(json, "xxh3");
    }
    if (name == NULL || !ddp_json_as_string(name, &shard->name) || shard->name[0] == 0 ||
        shard->name[0] == '.' || strchr(shard->name, '/') != NULL)
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: shard %" PRId64 " has no \"file\" with the name of a file in this "
                        "folder",
                        what, index);
    if (hash == NULL || !ddp_json_as_string(hash, &digits) || !read_hex(digits, &shard->xxh3))
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: %.80s: \"xxh3\" is missing or no 16 hex digits", what,
                        shard->name);
    DDP_TRY(get_int(json, what, "images", images, &shard->images));
    return get_int(json, what, "bytes", bytes, &shard->bytes);
}

static ddp_status read_shards(ddpi_shard_manifest *m, const char *what)
{
    const ddp_json *list = NULL;
    int64_t total = 0;
    DDP_TRY(get_list(m->json, what, "shards", DDPI_MANIFEST_MAX_SHARDS, &list, &m->shard_count));
    DDP_TRY(DDP_ALLOC(m->shards, (size_t)m->shard_count));
    for (int64_t i = 0; i < m->shard_count; i++) {
        DDP_TRY(read_shard(ddp_json_at(list, (size_t)i), what, i, &m->shards[i]));
        total += m->shards[i].images;
    }
    if (total != m->images)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: the shards have %" PRId64 " images, expected %" PRId64,
                        what, total, m->images);
    return DDP_OK;
}

static ddp_status read_all(ddpi_shard_manifest *m, const char *what)
{
    DDP_TRY(check_format(m->json, what));
    DDP_TRY(read_sizes(m, what));
    DDP_TRY(read_classes(m, what));
    return read_shards(m, what);
}

ddp_status ddpi_shard_manifest_parse(const char *text, size_t bytes, const char *what,
                                     ddpi_shard_manifest *manifest_out)
{
    ddpi_shard_manifest m = {0};
    DDP_TRY(ddp_json_load(text, bytes, what, &m.json));
    ddp_status st = read_all(&m, what);
    if (st != DDP_OK) {
        ddpi_shard_manifest_close(&m);
        return st;
    }
    *manifest_out = m;
    return DDP_OK;
}

void ddpi_shard_manifest_close(ddpi_shard_manifest *manifest)
{
    ddp_free(manifest->classes);
    ddp_free(manifest->class_images);
    ddp_free(manifest->shards);
    ddp_json_destroy(manifest->json);
    *manifest = (ddpi_shard_manifest){0};
}
