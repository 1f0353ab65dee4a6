/* findings.h - what rules have found, and the rules. All pure: one thread, nothing is asked of the
 * machine. */
#ifndef DDP_DOCTOR_FINDINGS_H
#define DDP_DOCTOR_FINDINGS_H

#include "doctor/record.h"

typedef enum ddpi_finding_kind {
    DDPI_FINDING_FAILS, /* the run will not get through */
    DDPI_FINDING_SLOW,  /* it will, but not as fast as it could */
    DDPI_FINDING_NOTE   /* worth knowing: neither is certain */
} ddpi_finding_kind;

enum { DDPI_FINDINGS = 64, DDPI_BECAUSE_BYTES = 400, DDPI_REMEDY_BYTES = 240 };

typedef struct ddpi_finding {
    ddpi_finding_kind kind;
    char because[DDPI_BECAUSE_BYTES];
    char remedy[DDPI_REMEDY_BYTES];
} ddpi_finding;

typedef struct ddpi_findings {
    int count, dropped; /* dropped: found, but there was no more room */
    ddpi_finding list[DDPI_FINDINGS];
} ddpi_findings;

/* Adds a finding whose cause is made from fmt; one that is there already is not added again. */
void ddpi_findings_add(ddpi_findings *findings, ddpi_finding_kind kind, const char *remedy,
                       const char *fmt, ...) DDP_PRINTF(4, 5);
/* How many there are of a kind. */
int ddpi_findings_count(const ddpi_findings *findings, ddpi_finding_kind kind);

/* ---- rules; each adds what it finds ---- */
void ddpi_rules_cores(const ddpi_doctor_case *c, ddpi_findings *out); /* rules_cores.c */
/* Of them, those that say how the launcher has bound ranks; they need hosts and cores alone. */
void ddpi_rules_binding(const ddpi_doctor_case *c, ddpi_findings *out);
void ddpi_rules_limits(const ddpi_doctor_case *c, ddpi_findings *out);  /* rules_limits.c */
void ddpi_rules_memory(const ddpi_doctor_case *c, ddpi_findings *out);  /* rules_limits.c */
void ddpi_rules_net(const ddpi_doctor_case *c, ddpi_findings *out);     /* rules_net.c */
void ddpi_rules_names(const ddpi_doctor_case *c, ddpi_findings *out);   /* rules_net.c */
void ddpi_rules_nccl(const ddpi_doctor_case *c, ddpi_findings *out);    /* rules_nccl.c */
void ddpi_rules_equal(const ddpi_doctor_case *c, ddpi_findings *out);   /* rules_equal.c */
void ddpi_rules_storage(const ddpi_doctor_case *c, ddpi_findings *out); /* rules_storage.c */
void ddpi_rules_links(const ddpi_doctor_case *c, ddpi_findings *out);   /* rules_links.c */
/* All of them. */
void ddpi_rules_all(const ddpi_doctor_case *c, ddpi_findings *out);

/* ---- what rules and the report share (about.c) ---- */

/* The first rank of the host of this rank. */
int ddpi_about_first(const ddpi_doctor_case *c, int rank);
bool ddpi_about_is_first(const ddpi_doctor_case *c, int rank);
int ddpi_about_hosts(const ddpi_doctor_case *c);
/* Ranks of this rank's host, and the cores that they may use together. */
int ddpi_about_ranks_of(const ddpi_doctor_case *c, int rank);
void ddpi_about_cores_of(const ddpi_doctor_case *c, int rank, cpu_set_t *cores_out);
/* "0-3,8" */
char *ddpi_about_cores(const cpu_set_t *cores, char *text, size_t text_bytes);
/* "rank 0-1,3" or "ranks 0-1,3": those of the host for which keep() holds; NULL: all. */
char *ddpi_about_ranks(const ddpi_doctor_case *c, int rank,
                       bool (*keep)(const ddpi_doctor_record *record), char *text,
                       size_t text_bytes);
/* "1.5 GiB" */
char *ddpi_about_bytes(double bytes, char *text, size_t text_bytes);
/* Value of a variable in a record, up to its line's end: NULL, or *bytes_out characters. */
const char *ddpi_about_variable(const ddpi_doctor_record *record, const char *name,
                                size_t *bytes_out);
/* Whether two addresses lie in one subnet. */
bool ddpi_about_same_subnet(const ddpi_doctor_iface *a, const ddpi_doctor_iface *b);
/* An interface that can reach other hosts. */
bool ddpi_about_reaches(const ddpi_doctor_iface *iface);
/* "10.77.1.0/24", of an IPv4 address; the address itself otherwise. */
char *ddpi_about_subnet(const ddpi_doctor_iface *iface, char *text, size_t text_bytes);
/* The interface of this host that shares a subnet with all hosts; NULL: there is none. */
const ddpi_doctor_iface *ddpi_about_common(const ddpi_doctor_case *c, int rank);

#endif
