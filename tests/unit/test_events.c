/* test_events.c - event files, read back by a reader of their own: bit by bit checksums, and
 * protobuf-c's unpacking. */
#include "harness.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "ddp/events.h"
#include <event.pb-c.h>

/* CRC-32C by long division, bit by bit, and its mask. */
static uint32_t checksum(const uint8_t *bytes, size_t count)
{
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < count * 8; i++) {
        const uint32_t bit = (bytes[i / 8] >> (i % 8) & 1) ^ (crc & 1);
        crc = (crc >> 1) ^ (bit != 0 ? 0x82f63b78 : 0);
    }
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static uint64_t get(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

typedef struct reading {
    uint8_t bytes[1 << 17];
    size_t size, at;
} reading;

/* The next record; NULL at the end. */
static Ddpi__Event *next(reading *r)
{
    if (r->at == r->size)
        return NULL;
    const uint8_t *record = r->bytes + r->at;
    const size_t size = (size_t)get(record, 8);
    assert_true(r->at + 16 + size <= r->size);
    assert_int_equal(get(record + 8, 4), checksum(record, 8));
    assert_int_equal(get(record + 12 + size, 4), checksum(record + 12, size));
    Ddpi__Event *event = ddpi__event__unpack(NULL, size, record + 12);
    assert_non_null(event);
    assert_true(event->has_wall_time && event->wall_time > 1.7e9);
    r->at += 16 + size;
    return event;
}

static void read_only_file(const char *dir, reading *r)
{
    char path[600] = "";
    DIR *folder = opendir(dir);
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0) {
            assert_int_equal(path[0], 0);
            snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        }
    closedir(folder);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    r->size = fread(r->bytes, 1, sizeof r->bytes, file);
    r->at = 0;
    fclose(file);
    unlink(path);
}

static void checksums_are_the_published_ones(void **state)
{
    (void)state;
    /* "123456789" has 0xe3069283 (RFC 3720, B.4's polynomial; the catalogue's check value). */
    const uint32_t crc = 0xe3069283;
    assert_int_equal(checksum((const uint8_t *)"123456789", 9),
                     ((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

static void scalars_come_back(void **state)
{
    (void)state;
    static reading r;
    char dir[] = "/tmp/events-XXXXXX";
    ddp_events *events;
    assert_non_null(mkdtemp(dir));
    CHECK_OK(ddp_events_open(dir, 8, &events));
    for (int step = 8; step < 1000; step++) {
        const ddp_scalar scalars[] = {{"train/loss", 1.0 / step},
                                      {"train/lr", step == 9 ? NAN : 0.5}};
        CHECK_OK(ddp_events_write(events, step, scalars, 2));
    }
    ddp_events_close(events);
    read_only_file(dir, &r);
    rmdir(dir);

    Ddpi__Event *event = next(&r);
    assert_string_equal(event->file_version, "brain.Event:2");
    ddpi__event__free_unpacked(event, NULL);
    event = next(&r);
    assert_int_equal(event->session_log->status, DDPI__SESSION_LOG__STATUS__START);
    assert_int_equal(event->step, 8);
    ddpi__event__free_unpacked(event, NULL);
    for (int step = 8; step < 1000; step++) {
        event = next(&r);
        assert_non_null(event);
        assert_int_equal(event->step, step);
        assert_int_equal(event->summary->n_value, 2);
        assert_string_equal(event->summary->value[0]->tag, "train/loss");
        assert_true(event->summary->value[0]->simple_value == (float)(1.0 / step));
        assert_string_equal(event->summary->value[1]->tag, "train/lr");
        if (step == 9)
            assert_true(isnan(event->summary->value[1]->simple_value));
        ddpi__event__free_unpacked(event, NULL);
    }
    assert_null(next(&r));
}

static void longest_records_fit(void **state)
{
    (void)state;
    static reading r;
    char dir[] = "/tmp/events-XXXXXX", tag[DDP_EVENTS_MAX_TAG + 1];
    ddp_scalar scalars[DDP_EVENTS_MAX_SCALARS];
    ddp_events *events;
    memset(tag, 'x', DDP_EVENTS_MAX_TAG);
    tag[DDP_EVENTS_MAX_TAG] = '\0';
    for (int i = 0; i < DDP_EVENTS_MAX_SCALARS; i++)
        scalars[i] = (ddp_scalar){tag, i};
    assert_non_null(mkdtemp(dir));
    CHECK_OK(ddp_events_open(dir, 1, &events));
    CHECK_OK(ddp_events_write(events, INT64_MAX, scalars, DDP_EVENTS_MAX_SCALARS));
    CHECK_OK(ddp_events_flush(events));
    read_only_file(dir, &r);
    ddp_events_close(events);
    rmdir(dir);
    for (int i = 0; i < 2; i++)
        ddpi__event__free_unpacked(next(&r), NULL);
    Ddpi__Event *event = next(&r);
    assert_int_equal(event->step, INT64_MAX);
    assert_int_equal(event->summary->n_value, DDP_EVENTS_MAX_SCALARS);
    ddpi__event__free_unpacked(event, NULL);
}

static void a_folder_that_is_not_there_is_named(void **state)
{
    (void)state;
    ddp_events *events;
    CHECK_FAILS(ddp_events_open("/nowhere/at/all", 1, &events), DDP_ERR_IO,
                "/nowhere/at/all/events.out");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums_are_the_published_ones),
        cmocka_unit_test(scalars_come_back),
        cmocka_unit_test(longest_records_fit),
        cmocka_unit_test(a_folder_that_is_not_there_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
