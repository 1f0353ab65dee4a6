/*
 * mistakes.cc - makes mistakes in the program's name (CUSIM_BUG), so that tests can see that they
 * are noticed. Each place where a call can be left out or changed asks with the names of what it is
 * about; the first time that a rule hits, a line says so. Threads: any; rules are read once.
 */
#include "sim.h"

#include <cstdio>

namespace sim
{
void stream_name(const Stream *stream, char *text, size_t size)
{
    snprintf(text, size, "%s%llu", stream->priority < 0 ? "high" : "low",
             (unsigned long long)stream->number);
}

/* The length of `text` up to `end`, which may be missing. */
static size_t length_to(const char *text, char end)
{
    const char *place = strchr(text, end);
    return place ? (size_t)(place - text) : strlen(text);
}

/* Both sides of '<' begin as the pattern's sides do; a pattern without '<' has the left side only.
 */
static bool fits(const char *pattern, const char *name)
{
    size_t left = length_to(pattern, '<');
    if (strncmp(pattern, name, left))
        return false;
    if (!pattern[left])
        return true;
    name += length_to(name, '<');
    return *name && !strncmp(pattern + left + 1, name + 1, strlen(pattern + left + 1));
}

static Rules *rules()
{
    static Rules *all = read_rules("CUSIM_BUG");
    return all;
}

bool mistake(const char *what, const char *name)
{
    Rules *all = rules();
    size_t length = strlen(what);
    for (int i = 0; i < all->count; i++) {
        Rule *rule = &all->rule[i];
        if (strncmp(rule->what, what, length))
            continue;
        const char *pattern = rule->what + length;
        if (*pattern && (*pattern != '/' || !fits(pattern + 1, name)))
            continue;
        long call = ++rule->calls;
        if (call != rule->at && (!rule->onwards || call < rule->at))
            continue;
        if (call == rule->at)
            note("a mistake on purpose: %s %s, number %ld", what, name, call);
        return true;
    }
    return false;
}

bool wait_is_left_out(const Stream *waits, const Stream *awaited)
{
    if (rules()->count == 0)
        return false;
    char name[64], other[24];
    stream_name(waits, name, 24);
    stream_name(awaited, other, sizeof other);
    strcat(strcat(name, "<"), other);
    return mistake("wait", name);
}

bool sync_is_left_out(const Stream *stream)
{
    if (rules()->count == 0)
        return false;
    char name[24];
    stream_name(stream, name, sizeof name);
    return mistake("sync", name);
}
} // namespace sim

extern "C" bool cusim_mistake(const char *what, const char *name)
{
    return sim::mistake(what, name);
}
