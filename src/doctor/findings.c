/* findings.c - the list of what was found, and the rules in the order in which they are told. */
#include "doctor/findings.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ddpi_findings_add(ddpi_findings *findings, ddpi_finding_kind kind, const char *remedy,
                       const char *fmt, ...)
{
    ddpi_finding finding = {.kind = kind};
    va_list args;

    va_start(args, fmt);
    vsnprintf(finding.because, sizeof finding.because, fmt, args);
    va_end(args);
    snprintf(finding.remedy, sizeof finding.remedy, "%s", remedy);
    for (int i = 0; i < findings->count; i++)
        if (strcmp(findings->list[i].because, finding.because) == 0)
            return;
    if (findings->count < DDPI_FINDINGS)
        findings->list[findings->count++] = finding;
    else
        findings->dropped++;
}

int ddpi_findings_count(const ddpi_findings *findings, ddpi_finding_kind kind)
{
    int count = 0;

    for (int i = 0; i < findings->count; i++)
        count += findings->list[i].kind == kind;
    return count;
}

void ddpi_rules_all(const ddpi_doctor_case *c, ddpi_findings *out)
{
    static void (*const rules[])(const ddpi_doctor_case *c, ddpi_findings *out) = {
        ddpi_rules_storage, ddpi_rules_limits, ddpi_rules_memory, ddpi_rules_nccl, ddpi_rules_equal,
        ddpi_rules_cores,   ddpi_rules_net,    ddpi_rules_names,  ddpi_rules_links};

    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        rules[i](c, out);
}
