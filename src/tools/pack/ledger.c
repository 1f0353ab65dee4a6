/* ledger.c - journal and manifest.
 *
 * A shard counts when its line in the journal is complete, which is written after the shard itself
 * is on the disk. A run that goes on reads the lines, drops a last one that is cut off, opens every
 * shard, and takes its images' sizes and labels from there. */
#include "tools/pack/ledger.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/shards.h"

enum { PATH_BYTES = 4096, NAME_BYTES = 32, TEXT_LIMIT_BYTES = 1 << 30 };
static const char journal_name[] = "packing.jsonl";

/* ---- texts ---- */

/* Length of the UTF-8 character at text; 0: there is none. */
static size_t utf8_length(const uint8_t *text)
{
    size_t length = text[0] < 0x80   ? 1
                    : text[0] < 0xc2 ? 0
                    : text[0] < 0xe0 ? 2
                    : text[0] < 0xf0 ? 3
                    : text[0] < 0xf5 ? 4
                                     : 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    if ((text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xed && text[1] > 0x9f) ||
        (text[0] == 0xf0 && text[1] < 0x90) || (text[0] == 0xf4 && text[1] > 0x8f))
        return 0;
    return length;
}

/* File names are bytes, JSON is UTF-8: what is none becomes \xNN. */
static ddp_status set_text(ddp_json *object, const char *key, const char *text)
{
    char *copy, *to;
    DDP_TRY(DDP_ALLOC(copy, strlen(text) * 4 + 1));
    to = copy;
    for (const uint8_t *at = (const uint8_t *)text; *at != 0;) {
        size_t length = utf8_length(at);
        if (length == 0) {
            to += sprintf(to, "\\x%02x", *at++);
            continue;
        }
        memcpy(to, at, length);
        to += length;
        at += length;
    }
    *to = 0;
    ddp_json_set_string(object, key, copy);
    ddp_free(copy);
    return DDP_OK;
}

static ddp_status check_class_names(const ddpi_inputs *inputs)
{
    for (int i = 0; i < inputs->class_count; i++)
        for (const uint8_t *at = (const uint8_t *)inputs->classes[i]; *at != 0;) {
            size_t length = utf8_length(at);
            if (length == 0)
                return DDP_FAIL(DDP_ERR_FORMAT, "%s/%s: the name of this class is not UTF-8",
                                inputs->folder, inputs->classes[i]);
            at += length;
        }
    return DDP_OK;
}

static ddp_status join(const ddpi_ledger *ledger, const char *name, char path[PATH_BYTES])
{
    return ddp_fs_join(path, PATH_BYTES, ledger->opts->output, name);
}

static void shard_name(int64_t index, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "shard-%05" PRId64 ".ddp", index);
}

ddp_status ddpi_ledger_shard_path(const ddpi_ledger *ledger, char *path, size_t path_bytes)
{
    char name[NAME_BYTES];
    shard_name(ledger->shard_count, name);
    return ddp_fs_join(path, path_bytes, ledger->opts->output, name);
}

/* ---- what is packed, and how ---- */

static void set_hex(ddp_json *object, const char *key, uint64_t value)
{
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    ddp_json_set_string(object, key, text);
}

/* Puts "input" and "options" into an object: whatever decides what is written. */
static ddp_status set_identity(const ddpi_ledger *ledger, ddp_json *object)
{
    const ddpi_pack_opts *opts = ledger->opts;
    ddp_json *input, *options;
    DDP_TRY(ddp_json_object(&input));
    ddp_json_set_int(input, "files", ledger->inputs->count);
    ddp_json_set_int(input, "bytes", ledger->inputs->bytes);
    set_hex(input, "xxh3", ledger->inputs->xxh3);
    ddp_json_set(object, "input", input);
    DDP_TRY(ddp_json_object(&options));
    ddp_json_set_int(options, "size", opts->size);
    ddp_json_set_int(options, "channels", opts->channels);
    ddp_json_set_int(options, "shard_mb", opts->shard_mb);
    ddp_json_set_string(options, "on_damaged",
                        opts->on_damaged == DDPI_DAMAGED_SKIP ? "skip" : "stop");
    ddp_json_set(object, "options", options);
    return DDP_OK;
}

/* The journal's first line. The caller frees it. */
static ddp_status identity_line(const ddpi_ledger *ledger, char **line_out)
{
    ddp_json *object;
    DDP_TRY(ddp_json_object(&object));
    ddp_status st = set_identity(ledger, object);
    if (st == DDP_OK)
        st = ddp_json_text(object, 0, line_out);
    ddp_json_destroy(object);
    return st;
}

static ddp_status other_input(const ddpi_ledger *ledger, const char *found, const char *want)
{
    return DDP_FAIL(DDP_ERR_MISMATCH,
                    "%s was begun with another input or other options: found %.300s, expected "
                    "%.300s; remove the folder to pack anew",
                    ledger->opts->output, found, want);
}

/* ---- a shard's part in the whole ---- */

static void count_images(ddpi_ledger *ledger, const ddp_shard *shard)
{
    for (uint32_t i = 0; i < shard->header->count; i++) {
        const ddp_shard_entry *e = &shard->entries[i];
        bool first = ledger->images == 0;
        if (first || e->height < ledger->min_height)
            ledger->min_height = e->height;
        if (first || e->width < ledger->min_width)
            ledger->min_width = e->width;
        if (e->height > ledger->max_height)
            ledger->max_height = e->height;
        if (e->width > ledger->max_width)
            ledger->max_width = e->width;
        ledger->class_images[e->label]++;
        ledger->images++;
    }
}

static ddp_status list_shard(ddpi_ledger *ledger, const ddp_shard *shard,
                             const ddpi_shard_facts *facts)
{
    char name[NAME_BYTES];
    ddp_json *entry;
    DDP_TRY(ddp_json_object(&entry));
    shard_name(ledger->shard_count, name);
    ddp_json_set_string(entry, "file", name);
    ddp_json_set_int(entry, "images", shard->header->count);
    ddp_json_set_int(entry, "bytes", (int64_t)facts->bytes);
    set_hex(entry, "xxh3", facts->xxh3);
    ddp_json_append(ledger->shards, entry);
    ledger->shard_count++;
    ledger->bytes += facts->bytes;
    ledger->next = facts->next;
    return DDP_OK;
}

/* Takes a shard that lies in the output folder into the account. */
static ddp_status take_shard(ddpi_ledger *ledger, const ddpi_shard_facts *facts)
{
    char path[PATH_BYTES];
    ddp_shard shard;
    DDP_TRY(ddpi_ledger_shard_path(ledger, path, sizeof path));
    DDP_TRY(ddp_shard_open(path, &shard));
    ddp_status st = DDP_OK;
    if (shard.byte_count != facts->bytes ||
        (int)shard.header->classes != ledger->inputs->class_count)
        st = DDP_FAIL(DDP_ERR_MISMATCH,
                      "%s: is not the shard that %s says; remove the folder to pack anew", path,
                      journal_name);
    if (st == DDP_OK) {
        count_images(ledger, &shard);
        st = list_shard(ledger, &shard, facts);
    }
    ddp_shard_close(&shard);
    return st;
}

static ddp_status add_damaged(ddp_json *list, const char *path, const char *reason)
{
    ddp_json *entry;
    DDP_TRY(ddp_json_object(&entry));
    ddp_status st = set_text(entry, "file", path);
    if (st == DDP_OK)
        st = set_text(entry, "reason", reason);
    ddp_json_append(list, entry);
    return st;
}

ddp_status ddpi_ledger_damaged(ddpi_ledger *ledger, const char *path, const char *reason)
{
    ledger->damaged_count++;
    DDP_TRY(add_damaged(ledger->damaged, path, reason));
    return add_damaged(ledger->new_damaged, path, reason);
}

/* ---- the journal ---- */

static ddp_status append(const ddpi_ledger *ledger, const char *line)
{
    char path[PATH_BYTES];
    DDP_TRY(join(ledger, journal_name, path));
    DDP_TRY(ddp_fs_write_all(ledger->journal, line, strlen(line), path));
    DDP_TRY(ddp_fs_write_all(ledger->journal, "\n", 1, path));
    if (fsync(ledger->journal) != 0)
        return DDP_FAIL(DDP_ERR_IO, "sync %s: %s", path, strerror(errno));
    return DDP_OK;
}

ddp_status ddpi_ledger_shard(ddpi_ledger *ledger, const ddpi_shard_facts *facts)
{
    ddp_json *line, *fresh;
    char *text;
    DDP_TRY(take_shard(ledger, facts));
    DDP_TRY(ddp_json_array(&fresh));
    ddp_status st = ddp_json_object(&line);
    if (st != DDP_OK) {
        ddp_json_destroy(fresh);
        return st;
    }
    ddp_json_set_int(line, "next", facts->next);
    ddp_json_set_int(line, "bytes", (int64_t)facts->bytes);
    set_hex(line, "xxh3", facts->xxh3);
    ddp_json_set(line, "damaged", ledger->new_damaged);
    ledger->new_damaged = fresh;
    st = ddp_json_text(line, 0, &text);
    ddp_json_destroy(line);
    DDP_TRY(st);
    st = append(ledger, text);
    ddp_free(text);
    return st;
}

static ddp_status bad_line(const ddpi_ledger *ledger)
{
    return DDP_FAIL(DDP_ERR_FORMAT,
                    "%s/%s: line %" PRId64 " is not one of ddp_pack; remove the folder to pack "
                    "anew",
                    ledger->opts->output, journal_name, ledger->shard_count + 2);
}

static ddp_status read_damaged(ddpi_ledger *ledger, const ddp_json *list)
{
    for (size_t i = 0; i < ddp_json_length(list); i++) {
        const ddp_json *entry = ddp_json_at(list, i), *file = NULL, *reason = NULL;
        const char *path, *text;
        if (ddp_json_is_object(entry)) {
            file = ddp_json_get(entry, "file");
            reason = ddp_json_get(entry, "reason");
        }
        if (file == NULL || reason == NULL || !ddp_json_as_string(file, &path) ||
            !ddp_json_as_string(reason, &text))
            return bad_line(ledger);
        DDP_TRY(add_damaged(ledger->damaged, path, text));
        ledger->damaged_count++;
    }
    return DDP_OK;
}

static bool read_facts(const ddpi_ledger *ledger, const ddp_json *line, ddpi_shard_facts *facts)
{
    static const char *const keys[] = {"next", "bytes", "xxh3", "damaged"};
    const ddp_json *members[4];
    int64_t next, bytes;
    const char *hex;
    char *end;
    if (!ddp_json_is_object(line))
        return false;
    for (int i = 0; i < 4; i++)
        if ((members[i] = ddp_json_get(line, keys[i])) == NULL)
            return false;
    if (!ddp_json_as_int(members[0], &next) || !ddp_json_as_int(members[1], &bytes) ||
        !ddp_json_as_string(members[2], &hex) || !ddp_json_is_array(members[3]) ||
        next <= ledger->next || next > ledger->inputs->count || bytes < 1)
        return false;
    *facts = (ddpi_shard_facts){(uint64_t)bytes, strtoull(hex, &end, 16), (int)next};
    return strlen(hex) == 16 && *end == 0;
}

static ddp_status replay_line(ddpi_ledger *ledger, const char *text, size_t bytes)
{
    ddpi_shard_facts facts;
    ddp_json *line;
    DDP_TRY(ddp_json_load(text, bytes, journal_name, &line));
    ddp_status st = read_facts(ledger, line, &facts) ? DDP_OK : bad_line(ledger);
    if (st == DDP_OK)
        st = read_damaged(ledger, ddp_json_get(line, "damaged"));
    if (st == DDP_OK)
        st = take_shard(ledger, &facts);
    ddp_json_destroy(line);
    return st;
}

/* Complete lines of the journal; *kept_out is where they end. */
static ddp_status replay(ddpi_ledger *ledger, char *text, const char *identity, size_t *kept_out)
{
    char *at = text;
    *kept_out = 0;
    for (char *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        *end = 0;
        if (at != text)
            DDP_TRY(replay_line(ledger, at, (size_t)(end - at)));
        else if (strcmp(at, identity) != 0)
            return other_input(ledger, at, identity);
        *kept_out = (size_t)(end + 1 - text);
    }
    return DDP_OK;
}

static ddp_status lock_journal(ddpi_ledger *ledger, const char *path)
{
    ledger->journal = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (ledger->journal < 0)
        return DDP_FAIL(DDP_ERR_IO, "open %s: %s", path, strerror(errno));
    if (flock(ledger->journal, LOCK_EX | LOCK_NB) == 0)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_IO, "lock %s: %s", path,
                    errno == EWOULDBLOCK ? "another ddp_pack is at work there" : strerror(errno));
}

static ddp_status read_journal(ddpi_ledger *ledger, const char *identity)
{
    char path[PATH_BYTES], *text;
    size_t bytes, kept;
    DDP_TRY(join(ledger, journal_name, path));
    DDP_TRY(lock_journal(ledger, path));
    DDP_TRY(ddp_fs_read(path, TEXT_LIMIT_BYTES, &text, &bytes));
    ddp_status st = replay(ledger, text, identity, &kept);
    ddp_free(text);
    DDP_TRY(st);
    if (kept < bytes && ftruncate(ledger->journal, (off_t)kept) != 0)
        return DDP_FAIL(DDP_ERR_IO, "cut %s: %s", path, strerror(errno));
    return kept == 0 ? append(ledger, identity) : DDP_OK;
}

/* ---- the manifest ---- */

static ddp_status check_manifest(ddpi_ledger *ledger, const char *path, const char *identity)
{
    char *text, *found = NULL;
    size_t bytes;
    ddp_json *manifest = NULL, *object = NULL;
    DDP_TRY(ddp_fs_read(path, TEXT_LIMIT_BYTES, &text, &bytes));
    ddp_status st = ddp_json_load(text, bytes, path, &manifest);
    ddp_free(text);
    DDP_TRY(st);
    static const char *const keys[] = {"input", "options"};
    st = ddp_json_object(&object);
    for (int i = 0; i < 2 && st == DDP_OK; i++) {
        const ddp_json *member =
            ddp_json_is_object(manifest) ? ddp_json_get(manifest, keys[i]) : NULL;
        char *part = NULL;
        ddp_json *copy;
        st = member != NULL ? ddp_json_text(member, 0, &part)
                            : DDP_FAIL(DDP_ERR_FORMAT, "%s: has no \"%s\"", path, keys[i]);
        if (st == DDP_OK)
            st = ddp_json_load(part, strlen(part), path, &copy);
        if (st == DDP_OK)
            ddp_json_set(object, keys[i], copy);
        ddp_free(part);
    }
    if (st == DDP_OK)
        st = ddp_json_text(object, 0, &found);
    if (st == DDP_OK && strcmp(found, identity) != 0)
        st = other_input(ledger, found, identity);
    ledger->finished = st == DDP_OK;
    ddp_free(found);
    ddp_json_destroy(object);
    ddp_json_destroy(manifest);
    return st;
}

/* Takes over the lists. */
static ddp_status fill_manifest(ddpi_ledger *ledger, ddp_json *manifest)
{
    ddp_json *classes, *class_images;
    DDP_TRY(ddp_json_array(&classes));
    ddp_json_set_string(manifest, "format", "ddp-shards");
    ddp_json_set_int(manifest, "version", DDP_SHARD_VERSION);
    ddp_json_set_int(manifest, "images", ledger->images);
    ddp_json_set_int(manifest, "channels", ledger->opts->channels);
    ddp_json_set_int(manifest, "min_height", ledger->min_height);
    ddp_json_set_int(manifest, "max_height", ledger->max_height);
    ddp_json_set_int(manifest, "min_width", ledger->min_width);
    ddp_json_set_int(manifest, "max_width", ledger->max_width);
    for (int i = 0; i < ledger->inputs->class_count; i++)
        ddp_json_append_string(classes, ledger->inputs->classes[i]);
    ddp_json_set(manifest, "classes", classes);
    DDP_TRY(ddp_json_array(&class_images));
    for (int i = 0; i < ledger->inputs->class_count; i++)
        ddp_json_append_int(class_images, ledger->class_images[i]);
    ddp_json_set(manifest, "class_images", class_images);
    ddp_json_set(manifest, "shards", ledger->shards);
    ddp_json_set(manifest, "damaged", ledger->damaged);
    ledger->shards = ledger->damaged = NULL;
    return set_identity(ledger, manifest);
}

ddp_status ddpi_ledger_finish(ddpi_ledger *ledger)
{
    char path[PATH_BYTES], *text = NULL;
    ddp_json *manifest;
    if (ledger->images == 0)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: has no image that can be packed",
                        ledger->inputs->folder);
    DDP_TRY(ddp_json_object(&manifest));
    ddp_status st = fill_manifest(ledger, manifest);
    if (st == DDP_OK)
        st = ddp_json_text(manifest, 2, &text);
    ddp_json_destroy(manifest);
    DDP_TRY(st);
    st = join(ledger, DDP_SHARD_MANIFEST, path);
    if (st == DDP_OK)
        st = ddp_fs_write_atomic(path, text, strlen(text));
    ddp_free(text);
    DDP_TRY(st);
    DDP_TRY(join(ledger, journal_name, path));
    if (unlink(path) != 0)
        return DDP_FAIL(DDP_ERR_IO, "remove %s: %s", path, strerror(errno));
    return DDP_OK;
}

/* ---- life ---- */

/* Removes what writing left unfinished; refuses shards that no journal speaks of. */
static ddp_status look_around(const ddpi_ledger *ledger, bool begun)
{
    char path[PATH_BYTES];
    DIR *dir = opendir(ledger->opts->output);
    ddp_status st = DDP_OK;
    if (dir == NULL)
        return DDP_FAIL(DDP_ERR_IO, "open %s: %s", ledger->opts->output, strerror(errno));
    for (struct dirent *entry; st == DDP_OK && (entry = readdir(dir)) != NULL;) {
        bool shard = strncmp(entry->d_name, "shard-", 6) == 0;
        bool ours = shard || strncmp(entry->d_name, DDP_SHARD_MANIFEST, 13) == 0;
        if (ours && strstr(entry->d_name, ".tmp-") != NULL) {
            st = join(ledger, entry->d_name, path);
            if (st == DDP_OK && unlink(path) != 0)
                st = DDP_FAIL(DDP_ERR_IO, "remove %s: %s", path, strerror(errno));
        } else if (shard && !begun) {
            st = DDP_FAIL(DDP_ERR_MISMATCH,
                          "%s: has %s, but neither %s nor %s; expected an empty folder",
                          ledger->opts->output, entry->d_name, DDP_SHARD_MANIFEST, journal_name);
        }
    }
    (void)closedir(dir);
    return st;
}

static ddp_status open_output(ddpi_ledger *ledger, const char *identity)
{
    char manifest[PATH_BYTES], journal[PATH_BYTES];
    DDP_TRY(ddp_fs_make_dirs(ledger->opts->output));
    DDP_TRY(join(ledger, DDP_SHARD_MANIFEST, manifest));
    DDP_TRY(join(ledger, journal_name, journal));
    bool begun = ddp_fs_exists(journal);
    if (!ddp_fs_exists(manifest)) {
        if (!begun)
            DDP_TRY(look_around(ledger, false));
        DDP_TRY(read_journal(ledger, identity));
        return look_around(ledger, true);
    }
    DDP_TRY(check_manifest(ledger, manifest, identity));
    /* Killed between the last two steps. */
    if (begun && unlink(journal) != 0)
        return DDP_FAIL(DDP_ERR_IO, "remove %s: %s", journal, strerror(errno));
    return DDP_OK;
}

ddp_status ddpi_ledger_open(const ddpi_pack_opts *opts, const ddpi_inputs *inputs,
                            ddpi_ledger *ledger)
{
    char *identity;
    *ledger = (ddpi_ledger){.opts = opts, .inputs = inputs, .journal = -1};
    DDP_TRY(check_class_names(inputs));
    DDP_TRY(DDP_ALLOC(ledger->class_images, (size_t)inputs->class_count));
    DDP_TRY(ddp_json_array(&ledger->shards));
    DDP_TRY(ddp_json_array(&ledger->damaged));
    DDP_TRY(ddp_json_array(&ledger->new_damaged));
    DDP_TRY(identity_line(ledger, &identity));
    ddp_status st = open_output(ledger, identity);
    ddp_free(identity);
    return st;
}

void ddpi_ledger_close(ddpi_ledger *ledger)
{
    if (ledger->journal >= 0)
        (void)close(ledger->journal);
    ddp_free(ledger->class_images);
    ddp_json_destroy(ledger->shards);
    ddp_json_destroy(ledger->damaged);
    ddp_json_destroy(ledger->new_damaged);
    *ledger = (ddpi_ledger){.journal = -1};
}
