/* stop.c - the flag that signals set. The handler does what handlers may: it writes an atomic and
 * gives the signals back. Any thread reads. */
#include "ddp/stop.h"

#include <signal.h>
#include <stdatomic.h>

static const int signals[] = {SIGTERM, SIGINT, SIGUSR1};
static atomic_int asked, timelines;

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
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct sigaction timeline = {.sa_handler = on_timeline, .sa_flags = SA_RESTART};

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
