/* rules_equal.c - what ranks should have in common: variables, versions, processors. Pure functions
 * of records. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "doctor/findings.h"

enum { NAME_BYTES = 64, SHOWN_BYTES = 60, TEXT_BYTES = 200 };

/* ---- variables ---- */

/* Of a host's ranks, one each: that is how launchers share them out. */
static bool may_differ(const char *name)
{
    return strcmp(name, "CUDA_VISIBLE_DEVICES") == 0;
}

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static void show(const char *value, size_t bytes, char text[SHOWN_BYTES + 8])
{
    if (value == NULL)
        snprintf(text, SHOWN_BYTES + 8, "none");
    else
        snprintf(text, SHOWN_BYTES + 8, "\"%.*s\"",
                 (int)(bytes < SHOWN_BYTES ? bytes : SHOWN_BYTES), value);
}

static void tell(const ddpi_doctor_case *c, const char *name, int r, ddpi_findings *out)
{
    const bool fails = c->needs.nccl && starts_with(name, "NCCL_");
    char mine[SHOWN_BYTES + 8], other[SHOWN_BYTES + 8], remedy[TEXT_BYTES];
    size_t bytes = 0;
    const char *value = ddpi_about_variable(&c->ranks[0], name, &bytes);

    show(value, bytes, mine);
    value = ddpi_about_variable(&c->ranks[r], name, &bytes);
    show(value, bytes, other);
    snprintf(remedy, sizeof remedy, "export it to all ranks alike (mpirun -x %.40s)", name);
    ddpi_findings_add(out, fails ? DDPI_FINDING_FAILS : DDPI_FINDING_NOTE, remedy,
                      "%s differs: rank 0 on %s has %s, rank %d on %s has %s", name,
                      c->ranks[0].host, mine, r, c->ranks[r].host, other);
}

static bool same_value(const ddpi_doctor_record *a, const ddpi_doctor_record *b, const char *name)
{
    size_t a_bytes = 0, b_bytes = 0;
    const char *x = ddpi_about_variable(a, name, &a_bytes);
    const char *y = ddpi_about_variable(b, name, &b_bytes);

    if (x == NULL || y == NULL)
        return x == y;
    return a_bytes == b_bytes && strncmp(x, y, a_bytes) == 0;
}

/* Names of list's variables: those that rank r has another value for. */
static void compare(const ddpi_doctor_case *c, const char *list, int r, ddpi_findings *out)
{
    for (const char *at = list; *at != '\0'; at += strcspn(at, "\n") + 1) {
        const size_t bytes = strcspn(at, "=\n");
        char name[NAME_BYTES];
        if (bytes >= sizeof name)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)bytes, at);
        if (may_differ(name) || same_value(&c->ranks[0], &c->ranks[r], name))
            continue;
        bool told = false; /* of an earlier rank */
        for (int k = 1; k < r && !told; k++)
            told = !same_value(&c->ranks[0], &c->ranks[k], name);
        if (!told)
            tell(c, name, r, out);
    }
}

/* ---- versions ---- */

typedef struct likeness {
    const char *what, *remedy;
    size_t offset; /* of the text in a record */
    bool (*fails)(const ddpi_doctor_needs *needs);
    ddpi_finding_kind kind; /* else */
} likeness;

static bool with_nccl(const ddpi_doctor_needs *needs)
{
    return needs->nccl;
}

static bool with_exact(const ddpi_doctor_needs *needs)
{
    return needs->exact;
}

static bool never(const ddpi_doctor_needs *needs)
{
    (void)needs;
    return false;
}

static const likeness likenesses[] = {
    {"MPI library", "install the same one on all hosts, or check LD_LIBRARY_PATH",
     offsetof(ddpi_doctor_record, mpi), never, DDPI_FINDING_NOTE},
    {"CUDA and NCCL", "install the same versions on all hosts, or check LD_LIBRARY_PATH",
     offsetof(ddpi_doctor_record, cuda), with_nccl, DDPI_FINDING_NOTE},
    {"device", "deal the work by speed: --rank-weights auto", offsetof(ddpi_doctor_record, device),
     with_exact, DDPI_FINDING_SLOW},
    {"processor", "deal the work by speed: --rank-weights auto",
     offsetof(ddpi_doctor_record, cpu.model), never, DDPI_FINDING_SLOW}};

static void check_likeness(const ddpi_doctor_case *c, const likeness *l, ddpi_findings *out)
{
    const char *first = (const char *)&c->ranks[0] + l->offset;

    for (int r = 1; r < c->world; r++) {
        const char *other = (const char *)&c->ranks[r] + l->offset;
        if (strcmp(first, other) == 0)
            continue;
        ddpi_findings_add(out, l->fails(&c->needs) ? DDPI_FINDING_FAILS : l->kind, l->remedy,
                          "ranks differ in %s: rank 0 on %s has \"%.100s\", rank %d on %s has "
                          "\"%.100s\"",
                          l->what, c->ranks[0].host, first, r, c->ranks[r].host, other);
        return;
    }
}

void ddpi_rules_equal(const ddpi_doctor_case *c, ddpi_findings *out)
{
    for (int r = 1; r < c->world; r++) {
        compare(c, c->ranks[0].env, r, out);
        compare(c, c->ranks[r].env, r, out);
    }
    for (size_t i = 0; i < sizeof likenesses / sizeof likenesses[0]; i++)
        check_likeness(c, &likenesses[i], out);
}
