/* thread.h - named threads, locks with deadlines, a bounded queue, and the monotonic clock.
 * Times are nanoseconds of CLOCK_MONOTONIC; a deadline is an absolute time, DDP_NO_DEADLINE never.
 */
#ifndef DDP_THREAD_H
#define DDP_THREAD_H

#include <pthread.h>

#include "ddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_NO_DEADLINE INT64_MAX

DDP_API int64_t ddp_now_ns(void);
/* now + ms, saturating; ms <= 0 means DDP_NO_DEADLINE. */
DDP_API int64_t ddp_deadline_after_ms(int64_t ms);
DDP_API void ddp_sleep_ns(int64_t ns);

typedef struct ddp_thread {
    pthread_t handle;
    bool running;
} ddp_thread;

/* Starts fn(arg) under a name of at most 15 bytes. The thread inherits the caller's rank context
 * and blocks all signals. The caller joins it. */
DDP_CALL ddp_status ddp_thread_start(ddp_thread *thread, const char *name, void *(*fn)(void *),
                                     void *arg);
/* No effect on a thread that is not running. */
DDP_API void ddp_thread_join(ddp_thread *thread);

/* For a thread that works shortly and often beside others that compute: the calling thread's turns
 * on a processor become short (100 us), for which the scheduler of Linux 6.12 and later lets it go
 * first when it wakes, instead of after a turn of the others (some ms). It also sleeps to 1 us
 * instead of 50. Needs no privilege; no effect where the kernel knows neither. */
DDP_API void ddp_thread_short_turns(void);

/* A mutex with a condition on the monotonic clock. */
typedef struct ddp_monitor {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
} ddp_monitor;

DDP_CALL ddp_status ddp_monitor_init(ddp_monitor *monitor);
DDP_API void ddp_monitor_destroy(ddp_monitor *monitor);
DDP_API void ddp_monitor_lock(ddp_monitor *monitor);
DDP_API void ddp_monitor_unlock(ddp_monitor *monitor);
/* Waits for a signal; false if the deadline passed. The caller holds the lock and checks its
 * condition again, as always with conditions. */
DDP_API bool ddp_monitor_wait(ddp_monitor *monitor, int64_t deadline_ns);
DDP_API void ddp_monitor_wake_all(ddp_monitor *monitor);

/* A bounded first-in first-out queue of pointers. Any thread may push and pop. */
typedef struct ddp_queue ddp_queue;

typedef enum ddp_queue_result {
    DDP_QUEUE_OK,
    DDP_QUEUE_CLOSED,
    DDP_QUEUE_TIMEOUT
} ddp_queue_result;

DDP_CALL ddp_status ddp_queue_create(size_t capacity, ddp_queue **queue_out);
DDP_API void ddp_queue_destroy(ddp_queue *queue);
DDP_API ddp_queue_result ddp_queue_push(ddp_queue *queue, void *item, int64_t deadline_ns);
/* After close, what is still queued is handed out before DDP_QUEUE_CLOSED. */
DDP_API ddp_queue_result ddp_queue_pop(ddp_queue *queue, void **item_out, int64_t deadline_ns);
/* Wakes everybody; later pushes are refused. */
DDP_API void ddp_queue_close(ddp_queue *queue);
DDP_API size_t ddp_queue_length(ddp_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
