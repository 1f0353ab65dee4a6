/* check_trace.c - whether a timeline is what it should be: check_trace FILE RANKS STEPS
 * BUCKET_BYTES overlap|none|any CLOCK_US [stream|graph]. With stream,
 * a device's stream has made each step's passes within the step; with graph, it alone has, and
 * nothing is known of layers and buckets.
 *
 * Strict about form: every event's keys and their types, names for all tracks, spans that nest.
 * And about sense: each rank has each step with all its parts; buckets carry so many bytes a step
 * (0: not looked at), and travel during backward, or never do; and no rank leaves a step's control
 * word before the last has come to it, but for CLOCK_US of error of clocks. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 16, MAX_STEPS = 64, MAX_TRACKS = 2048, DEPTH = 16, STREAM = 999 };

enum {
    STEP,
    DATA,
    FORWARD,
    BACKWARD,
    LAYER_FORWARD,
    LAYER_BACKWARD,
    BUCKET,
    OPTIM,
    CONTROL,
    PARTS
};
static const char *const parts[PARTS] = {"step",     "data",          "forward",
                                         "backward", "layer forward", "layer backward",
                                         "bucket",   "optimizer",     "control word"};
static const char *const others[] = {"publish",          "wait", "evaluation", "checkpoint",
                                     "checkpoint write", "load"};

typedef struct span {
    int64_t begin, end; /* nanoseconds */
} span;

typedef struct step {
    int count[PARTS];
    int64_t bytes;
    int on_stream; /* forwards and backwards */
    span whole, backward, control;
    int64_t overlap; /* of buckets with backward */
} step;

typedef struct track {
    bool named;
    int depth;
    int64_t last;
    span open[DEPTH];
} track;

static int ranks, steps;
static int64_t first_step = INT64_MAX;
static step found[MAX_RANKS][MAX_STEPS];
static track tracks[MAX_RANKS][MAX_TRACKS];
static bool named[MAX_RANKS];
static int bad;
static bool streams, graphs;

static void complain(const char *fmt, ...)
{
    va_list args;
    if (bad++ > 20)
        return;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
}

/* ---- form ---- */

static bool has_keys(const json_t *object, const char *const *keys, size_t needed, size_t count)
{
    size_t seen = 0;
    for (size_t i = 0; i < count; i++) {
        const bool there = json_object_get(object, keys[i]) != NULL;
        seen += there;
        if (!there && i < needed)
            return false;
    }
    return json_object_size(object) == seen;
}

static int64_t integer(const json_t *object, const char *key, int64_t lo, int64_t hi)
{
    const json_t *value = json_object_get(object, key);
    const int64_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < lo || n > hi)
        complain("%s: found %" PRId64 ", expected an integer from %" PRId64 " to %" PRId64, key, n,
                 lo, hi);
    return n < lo ? lo : n > hi ? hi : n;
}

static int64_t nanoseconds(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value) || json_number_value(value) < 0)
        complain("%s is no time", key);
    return llround(json_number_value(value) * 1e3);
}

static void check_metadata(const json_t *event)
{
    static const char *const keys[] = {"ph", "name", "pid", "tid", "args"};
    const char *name = json_string_value(json_object_get(event, "name"));
    const json_t *args = json_object_get(event, "args");
    if (!has_keys(event, keys, 5, 5) || name == NULL || json_object_size(args) != 1) {
        complain("metadata with other keys");
        return;
    }
    const int64_t pid = integer(event, "pid", 0, ranks - 1);
    const int64_t tid = integer(event, "tid", 0, MAX_TRACKS - 1);
    const char *text = json_string_value(json_object_get(args, "name"));
    if (strcmp(name, "process_name") == 0 && text != NULL && text[0] != 0)
        named[pid] = true;
    else if (strcmp(name, "thread_name") == 0 && text != NULL && text[0] != 0)
        tracks[pid][tid].named = true;
    else if (strcmp(name, "process_sort_index") == 0 || strcmp(name, "thread_sort_index") == 0)
        (void)integer(args, "sort_index", 0, MAX_TRACKS);
    else
        complain("metadata %s with a wrong argument", name);
}

/* Events of a track come in order of their begin, what contains others first. */
static void check_nesting(track *t, span s, const char *name)
{
    if (s.begin < t->last)
        complain("%s begins before the event ahead of it", name);
    t->last = s.begin;
    while (t->depth > 0 && t->open[t->depth - 1].end <= s.begin)
        t->depth--;
    if (t->depth > 0 && s.end > t->open[t->depth - 1].end)
        complain("%s at %" PRId64 " ns lies half in another event", name, s.begin);
    if (t->depth == DEPTH)
        complain("%s lies too deep", name);
    else
        t->open[t->depth++] = s;
}

/* ---- sense ---- */

static int part_of(const char *cat)
{
    for (int i = 0; i < PARTS; i++)
        if (strcmp(cat, parts[i]) == 0)
            return i;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(cat, others[i]) == 0)
            return PARTS;
    complain("unknown category %s", cat);
    return PARTS;
}

static int64_t common(span a, span b)
{
    const int64_t lo = a.begin > b.begin ? a.begin : b.begin, hi = a.end < b.end ? a.end : b.end;
    return hi > lo ? hi - lo : 0;
}

/* Spans of steps before the first whole one may reach into the file. */
static void note(int64_t rank, int part, int64_t number, span s, int64_t bytes, bool on_stream)
{
    if (part == PARTS || number < first_step || number >= first_step + steps)
        return;
    step *st = &found[rank][number - first_step];
    st->count[part]++;
    st->on_stream += on_stream && (part == FORWARD || part == BACKWARD);
    if (part == STEP)
        st->whole = s;
    if (on_stream && (s.begin < st->whole.begin || s.end > st->whole.end))
        complain("rank %d, step %" PRId64 ": the stream's %s lies outside", (int)rank, number,
                 parts[part]);
    if (part == BACKWARD)
        st->backward = s;
    if (part == CONTROL)
        st->control = s;
    if (part == BUCKET) {
        st->bytes += bytes;
        st->overlap += common(st->backward, s); /* backward is on an earlier track */
    }
}

static void check_span(const json_t *event, bool only_steps)
{
    static const char *const keys[] = {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"};
    static const char *const arg_keys[] = {"step", "id", "bytes"};
    const char *name = json_string_value(json_object_get(event, "name"));
    const char *cat = json_string_value(json_object_get(event, "cat"));
    const json_t *args = json_object_get(event, "args");
    if (!has_keys(event, keys, 8, 8) || name == NULL || cat == NULL ||
        !has_keys(args, arg_keys, 2, 3)) {
        complain("a span with other keys: %s", name != NULL ? name : "?");
        return;
    }
    const int64_t number = integer(args, "step", 0, INT64_MAX);
    const int part = part_of(cat);
    if (only_steps) {
        first_step = part == STEP && number < first_step ? number : first_step;
        return;
    }
    const int64_t pid = integer(event, "pid", 0, ranks - 1);
    const int64_t tid = integer(event, "tid", 0, MAX_TRACKS - 1);
    const int64_t begin = nanoseconds(event, "ts"), took = nanoseconds(event, "dur");
    const span s = {begin, begin + took};
    const bool moves = json_object_get(args, "bytes") != NULL;
    const int64_t bytes = moves ? integer(args, "bytes", 1, INT64_MAX) : 0;
    (void)integer(args, "id", -1, INT32_MAX);
    if (!named[pid] || !tracks[pid][tid].named)
        complain("%s: its rank or track has no name", name);
    check_nesting(&tracks[pid][tid], s, name);
    note(pid, part, number, s, bytes, tid == STREAM);
}

/* What only the host can tell. */
static bool of_host(int part)
{
    return part == LAYER_FORWARD || part == LAYER_BACKWARD || part == BUCKET;
}

static void check_steps(int64_t bucket_bytes)
{
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < steps; i++) {
            const step *st = &found[r][i];
            for (int p = 0; p < PARTS; p++)
                if ((st->count[p] < 1 && !(graphs && of_host(p))) ||
                    (p == STEP && st->count[p] > 1))
                    complain("rank %d, step %" PRId64 ": %d times %s", r, first_step + i,
                             st->count[p], parts[p]);
            if (st->on_stream != (streams ? 2 : 0))
                complain("rank %d, step %" PRId64 ": %d passes on the stream", r, first_step + i,
                         st->on_stream);
            if (bucket_bytes > 0 && st->bytes != bucket_bytes)
                complain("rank %d, step %" PRId64 ": buckets of %" PRId64
                         " bytes, expected %" PRId64,
                         r, first_step + i, st->bytes, bucket_bytes);
        }
}

/* The rank that comes last to a bucket is in its backward then, if buckets travel during it. */
static void check_overlap(const char *want)
{
    int with = 0;
    for (int i = 0; i < steps; i++) {
        int64_t most = 0;
        for (int r = 0; r < ranks; r++)
            most = found[r][i].overlap > most ? found[r][i].overlap : most;
        with += most > 0;
    }
    if (strcmp(want, "overlap") == 0 && with < steps)
        complain("%d of %d steps have a bucket during backward", with, steps);
    if (strcmp(want, "none") == 0 && with > 0)
        complain("%d of %d steps have a bucket during backward, expected none", with, steps);
}

static void check_clocks(int64_t error_ns)
{
    for (int i = 0; i < steps; i++) {
        int64_t last_begin = 0, first_end = INT64_MAX;
        for (int r = 0; r < ranks; r++) {
            const span s = found[r][i].control;
            last_begin = s.begin > last_begin ? s.begin : last_begin;
            first_end = s.end < first_end ? s.end : first_end;
        }
        if (last_begin > first_end + error_ns)
            complain("step %" PRId64 ": a rank has all control words %" PRId64
                     " ns before the last has sent its own",
                     first_step + i, last_begin - first_end);
    }
}

static void check_events(const json_t *events)
{
    size_t i;
    json_t *event;
    if (!json_is_array(events) || json_array_size(events) == 0)
        complain("no traceEvents");
    for (int round = 0; round < 2; round++)
        json_array_foreach(events, i, event)
        {
            const char *ph = json_string_value(json_object_get(event, "ph"));
            if (ph != NULL && strcmp(ph, "X") == 0)
                check_span(event, round == 0);
            else if (ph == NULL || strcmp(ph, "M") != 0)
                complain("an event that is neither M nor X");
            else if (round == 1)
                check_metadata(event);
        }
    for (int r = 0; r < ranks; r++)
        if (!named[r])
            complain("rank %d has no name", r);
}

int main(int argc, char **argv)
{
    static const char *const keys[] = {"displayTimeUnit", "traceEvents"};
    json_error_t error;
    if (argc != 7 && argc != 8)
        return 2;
    streams = argc == 8;
    graphs = streams && strcmp(argv[7], "graph") == 0;
    ranks = atoi(argv[2]);
    steps = atoi(argv[3]);
    json_t *root = json_load_file(argv[1], JSON_REJECT_DUPLICATES, &error);
    if (root == NULL || ranks < 1 || ranks > MAX_RANKS || steps < 1 || steps > MAX_STEPS) {
        printf("%s: %s\n", argv[1], root == NULL ? error.text : "arguments out of range");
        return 1;
    }
    if (!has_keys(root, keys, 2, 2))
        complain("the file has other keys");
    check_events(json_object_get(root, "traceEvents"));
    check_steps(atoll(argv[4]));
    check_overlap(argv[5]);
    check_clocks(atoll(argv[6]) * 1000);
    json_decref(root);
    if (bad > 0)
        printf("%s: %d faults\n", argv[1], bad);
    return bad > 0;
}
