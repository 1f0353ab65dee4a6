/* stop.c - the flag that signals set. The handler does what handlers may: it writes an atomic and
 * gives the signals back. Any thread reads.
 *
 * Handlers have a stack of their own. oneDNN's generated matrix products keep values below the
 * stack pointer, further down than the 128 bytes that the kernel leaves alone: a handler's frame
 * there overwrites them, and the product then writes anywhere. Only the main thread gets signals;
 * ddp_thread_start() blocks them in all others. */
#include "ddp/stop.h"

#include <signal.h>
#include <stdatomic.h>

static const int signals[] = {SIGTERM, SIGINT, SIGUSR1};
static atomic_int asked, timelines;
static _Alignas(64) char handler_stack[64 * 1024]; /* wide registers take 3 to 11 KiB of it */

static void on_signal(int number)
{
    const int before = atomic_exchange(&asked, number);

    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        signal(signals[i], SIG_DFL);
    /* Two threads can be in here at once. */
    if (before != 0)
        raise(number);
}

static void on_timeline(int number)
{
    (void)number;
    atomic_fetch_add(&timelines, 1);
}

void ddp_stop_catch(void)
{
    const stack_t stack = {.ss_sp = handler_stack, .ss_size = sizeof handler_stack};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK};
    struct sigaction timeline = {.sa_handler = on_timeline, .sa_flags = SA_RESTART | SA_ONSTACK};

    (void)!sigaltstack(&stack, NULL);
    /* One that comes while the handler runs waits for it, and then has its usual effect. */
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaddset(&action.sa_mask, signals[i]);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaction(signals[i], &action, NULL);
    sigemptyset(&timeline.sa_mask);
    sigaction(SIGUSR2, &timeline, NULL);
}

int ddp_stop_timelines(void)
{
    return atomic_load(&timelines);
}

int ddp_stop_asked(void)
{
    return atomic_load(&asked);
}
