/* harness.h - what the unit tests share: cmocka with its includes, and checks of a ddp_status. */
#ifndef DDP_TESTS_HARNESS_H
#define DDP_TESTS_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ddp/status.h"

/* The call succeeds; otherwise its message is printed. */
#define CHECK_OK(expr)                                                                             \
    do {                                                                                           \
        ddp_status check_status_ = (expr);                                                         \
        if (check_status_ != DDP_OK)                                                               \
            fail_msg("%s: %s: %s", #expr, ddp_status_name(check_status_), ddp_status_message());   \
    } while (0)

/* The call fails with this status, and its message contains this text. */
#define CHECK_FAILS(expr, want_status, want_text)                                                  \
    do {                                                                                           \
        ddp_status check_status_ = (expr);                                                         \
        if (check_status_ != (want_status))                                                        \
            fail_msg("%s: got %s (%s), want %s", #expr, ddp_status_name(check_status_),            \
                     ddp_status_message(), ddp_status_name(want_status));                          \
        if (strstr(ddp_status_message(), (want_text)) == NULL)                                     \
            fail_msg("%s: message \"%s\" does not contain \"%s\"", #expr, ddp_status_message(),    \
                     (want_text));                                                                 \
    } while (0)

#endif
