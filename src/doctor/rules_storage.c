/* rules_storage.c - data that a rank cannot read, directories that it cannot write, and hosts that
 * do not share a file system. Pure functions of records. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "doctor/findings.h"

enum { TEXT_BYTES = 64 };
#define CHECKPOINT_VALUES 3 /* parameters, and at most twice as many of the optimizer */

/* What an earlier rank of the host has said already. */
static bool was_told(const ddpi_doctor_case *c, int r, size_t offset)
{
    const char *mine = (const char *)&c->ranks[r].storage + offset;

    for (int k = 0; k < r; k++)
        if (strcmp(c->ranks[k].host, c->ranks[r].host) == 0 &&
            strcmp((const char *)&c->ranks[k].storage + offset, mine) == 0)
            return true;
    return false;
}

static bool is_first_of_node(const ddpi_doctor_case *c, int r)
{
    for (int k = 0; k < r; k++)
        if (c->ranks[k].node == c->ranks[r].node)
            return false;
    return true;
}

/* A node's first rank reads for all of them, where formats allow that and there is memory. */
static void check_data(const ddpi_doctor_case *c, int r, ddpi_findings *out)
{
    const char *cause = c->ranks[r].storage.data_error;

    if (cause[0] == '\0' || was_told(c, r, offsetof(ddpi_doctor_storage, data_error)))
        return;
    ddpi_findings_add(out, is_first_of_node(c, r) ? DDPI_FINDING_FAILS : DDPI_FINDING_NOTE,
                      "put the data set there on every host, or say another --data-dir",
                      "rank %d on %s cannot read the data: %s", r, c->ranks[r].host, cause);
}

static void check_run_dir(const ddpi_doctor_case *c, int r, ddpi_findings *out)
{
    const char *cause = c->ranks[r].storage.run_error;

    if (cause[0] == '\0' || was_told(c, r, offsetof(ddpi_doctor_storage, run_error)))
        return;
    ddpi_findings_add(out, DDPI_FINDING_FAILS, "say a --run-dir that every rank may write to",
                      "rank %d on %s cannot write the run directory: %s", r, c->ranks[r].host,
                      cause);
}

static void check_shared(const ddpi_doctor_case *c, int r, ddpi_findings *out)
{
    const ddpi_doctor_storage *storage = &c->ranks[r].storage;

    if (storage->run_shared || storage->run_error[0] != '\0' ||
        c->ranks[0].storage.run_error[0] != '\0')
        return;
    ddpi_findings_add(out, c->needs.saves ? DDPI_FINDING_FAILS : DDPI_FINDING_NOTE,
                      "say a --run-dir on a file system that the hosts share",
                      "%s and %s do not see the same directory under %s%s", c->ranks[0].host,
                      c->ranks[r].host, c->needs.run_dir,
                      c->needs.saves ? ", and checkpoints are written by all of them"
                                     : ": each keeps its ranks' logs");
}

static void check_space(const ddpi_doctor_case *c, ddpi_findings *out)
{
    const double need = (double)c->needs.parameters * sizeof(float) * CHECKPOINT_VALUES;
    const int64_t left = c->ranks[0].storage.run_free;
    char a[TEXT_BYTES], b[TEXT_BYTES];

    if (!c->needs.saves || left == 0 || (double)left >= need)
        return;
    ddpi_findings_add(out, DDPI_FINDING_FAILS, "make room, or say another --run-dir",
                      "a checkpoint takes up to %s, and %s are free under %s",
                      ddpi_about_bytes(need, a, sizeof a),
                      ddpi_about_bytes((double)left, b, sizeof b), c->needs.run_dir);
}

void ddpi_rules_storage(const ddpi_doctor_case *c, ddpi_findings *out)
{
    for (int r = 0; r < c->world; r++) {
        check_data(c, r, out);
        check_run_dir(c, r, out);
        if (ddpi_about_is_first(c, r))
            check_shared(c, r, out);
    }
    check_space(c, out);
}
