/* events.c - TensorBoard's event files: records around protocol buffers. See events.h.
 *
 * A record is packed on the stack and goes to the stream's own buffer, so that a step allocates
 * nothing. */
#include "ddp/events.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/thread.h"
#include <event.pb-c.h>

/* The polynomial of CRC-32C (Castagnoli), bits in reverse. */
#define CRC_POLYNOMIAL UINT32_C(0x82f63b78)
/* How TFRecord files hide a checksum that data may contain itself. */
#define CRC_MASK UINT32_C(0xa282ead8)

#define FLUSH_NS INT64_C(5000000000)

enum {
    BUFFER_BYTES = 1 << 16,
    /* Of a value beside its tag: two keys, two lengths, a float; of the event: the rest. */
    RECORD_BYTES = 64 + DDP_EVENTS_MAX_SCALARS * (DDP_EVENTS_MAX_TAG + 16),
    HEAD_BYTES = 12,
    CRC_BYTES = 4
};

struct ddp_events {
    FILE *file;
    char path[PATH_MAX];
    int64_t flushed_ns;
    uint32_t table[256]; /* of the checksum */
    char buffer[BUFFER_BYTES];
};

/* ---- checksums ---- */

static void make_table(uint32_t table[256])
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ ((crc & 1) != 0 ? CRC_POLYNOMIAL : 0);
        table[i] = crc;
    }
}

static uint32_t masked_crc(const ddp_events *e, const uint8_t *bytes, size_t count)
{
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < count; i++)
        crc = crc >> 8 ^ e->table[(crc ^ bytes[i]) & 0xff];
    crc = ~crc;
    return (crc >> 15 | crc << 17) + CRC_MASK;
}

/* Little-endian. */
static void put(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

/* ---- records ---- */

static ddp_status failed(const ddp_events *e)
{
    return DDP_FAIL(DDP_ERR_IO, "write %s: %s", e->path, strerror(errno));
}

static double wall_time(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static ddp_status write_event(ddp_events *e, const Ddpi__Event *event)
{
    uint8_t record[HEAD_BYTES + RECORD_BYTES + CRC_BYTES];
    const size_t size = ddpi__event__get_packed_size(event);

    DDP_ASSERT(size <= RECORD_BYTES);
    put(record, size, 8);
    put(record + 8, masked_crc(e, record, 8), CRC_BYTES);
    ddpi__event__pack(event, record + HEAD_BYTES);
    put(record + HEAD_BYTES + size, masked_crc(e, record + HEAD_BYTES, size), CRC_BYTES);
    return fwrite(record, HEAD_BYTES + size + CRC_BYTES, 1, e->file) == 1 ? DDP_OK : failed(e);
}

ddp_status ddp_events_write(ddp_events *e, int64_t step, const ddp_scalar *scalars, int count)
{
    Ddpi__Summary__Value values[DDP_EVENTS_MAX_SCALARS];
    Ddpi__Summary__Value *list[DDP_EVENTS_MAX_SCALARS];
    Ddpi__Summary summary = DDPI__SUMMARY__INIT;
    Ddpi__Event event = DDPI__EVENT__INIT;

    DDP_ASSERT(count <= DDP_EVENTS_MAX_SCALARS);
    for (int i = 0; i < count; i++) {
        DDP_ASSERT(strlen(scalars[i].tag) <= DDP_EVENTS_MAX_TAG);
        values[i] = (Ddpi__Summary__Value)DDPI__SUMMARY__VALUE__INIT;
        values[i].tag = (char *)scalars[i].tag;
        values[i].has_simple_value = 1;
        values[i].simple_value = (float)scalars[i].value;
        list[i] = &values[i];
    }
    summary.n_value = (size_t)count;
    summary.value = list;
    event.has_wall_time = event.has_step = 1;
    event.wall_time = wall_time();
    event.step = step;
    event.summary = &summary;
    DDP_TRY(write_event(e, &event));
    return ddp_now_ns() - e->flushed_ns > FLUSH_NS ? ddp_events_flush(e) : DDP_OK;
}

ddp_status ddp_events_flush(ddp_events *e)
{
    e->flushed_ns = ddp_now_ns();
    return fflush(e->file) == 0 ? DDP_OK : failed(e);
}

/* ---- life ---- */

static ddp_status write_start(ddp_events *e, int64_t step)
{
    Ddpi__SessionLog log = DDPI__SESSION_LOG__INIT;
    Ddpi__Event version = DDPI__EVENT__INIT, start = DDPI__EVENT__INIT;

    version.has_wall_time = start.has_wall_time = 1;
    version.wall_time = start.wall_time = wall_time();
    version.file_version = (char *)"brain.Event:2";
    DDP_TRY(write_event(e, &version));
    log.has_status = 1;
    log.status = DDPI__SESSION_LOG__STATUS__START;
    start.has_step = 1;
    start.step = step;
    start.session_log = &log;
    DDP_TRY(write_event(e, &start));
    return ddp_events_flush(e);
}

/* Readers take files in the order of their names, so the time comes first. */
static ddp_status make_file(ddp_events *e, const char *dir)
{
    char host[64] = "host", name[160];

    (void)gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "events.out.tfevents.%.6f.%s.%ld", wall_time(), host,
             (long)getpid());
    DDP_TRY(ddp_fs_join(e->path, sizeof e->path, dir, name));
    e->file = fopen(e->path, "wxe");
    if (e->file == NULL)
        return DDP_FAIL(DDP_ERR_IO, "create %s: %s", e->path, strerror(errno));
    setvbuf(e->file, e->buffer, _IOFBF, sizeof e->buffer);
    return DDP_OK;
}

ddp_status ddp_events_open(const char *dir, int64_t step, ddp_events **events_out)
{
    ddp_events *e;

    DDP_TRY(DDP_ALLOC(e, 1));
    make_table(e->table);
    ddp_status st = make_file(e, dir);
    if (st == DDP_OK)
        st = write_start(e, step);
    if (st != DDP_OK) {
        ddp_events_close(e);
        return st;
    }
    *events_out = e;
    return DDP_OK;
}

void ddp_events_close(ddp_events *e)
{
    if (e == NULL)
        return;
    if (e->file != NULL)
        fclose(e->file);
    ddp_free(e);
}
