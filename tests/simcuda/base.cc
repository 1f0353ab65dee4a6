/*
 * base.cc - what the rest stands on: futex locks, memory and edges for the thread sanitizer,
 * reports, injected failures (CUSIM_FAIL), the entry of every call. Threads: any. Locks: one for
 * the injection counters.
 */
#include "sim.h"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WEAK __attribute__((weak))
extern "C" {
WEAK void __tsan_acquire(void *);
WEAK void __tsan_release(void *);
WEAK void __tsan_read_range(void *, unsigned long);
WEAK void __tsan_write_range(void *, unsigned long);
WEAK void AnnotateIgnoreReadsBegin(const char *, int);
WEAK void AnnotateIgnoreReadsEnd(const char *, int);
WEAK void AnnotateIgnoreWritesBegin(const char *, int);
WEAK void AnnotateIgnoreWritesEnd(const char *, int);
}

namespace sim
{
Lock api;
std::atomic<int> sticky{0};
static std::atomic<bool> reported{false};
static __thread cudaError_t last_error __attribute__((tls_model("initial-exec")));
__thread bool in_host_function __attribute__((tls_model("initial-exec")));

void futex_wait(std::atomic<uint32_t> *word, uint32_t seen, int timeout_ms)
{
    timespec limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout_ms < 0 ? nullptr : &limit, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t> *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
}

/* 0 free, 1 held, 2 held and waited for. */
void Lock::lock()
{
    uint32_t free = 0;
    if (state.compare_exchange_strong(free, 1))
        return;
    while (state.exchange(2) != 0)
        futex_wait(&state, 2, -1);
}

void Lock::unlock()
{
    if (state.exchange(0) == 2)
        futex_wake(&state);
}

/* malloc and free count as writes; the simulator's objects go from thread to thread without an edge
 * that the sanitizer knows. */
static void look_away(bool begin)
{
    if (!AnnotateIgnoreReadsBegin)
        return;
    if (begin) {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    } else {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
}

void *quiet_alloc(size_t bytes)
{
    look_away(true);
    void *memory = malloc(bytes);
    look_away(false);
    if (!memory)
        abort();
    return memory;
}

void quiet_free(void *memory)
{
    look_away(true);
    free(memory);
    look_away(false);
}

void read_range(const void *p, size_t bytes)
{
    if (__tsan_read_range)
        __tsan_read_range(const_cast<void *>(p), bytes);
}

void write_range(void *p, size_t bytes)
{
    if (__tsan_write_range)
        __tsan_write_range(p, bytes);
}

int64_t now_ns()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, nullptr, 10) : otherwise;
}

bool environment_is(const char *name, const char *value)
{
    const char *text = getenv(name);
    return text && !strcmp(text, value);
}

uint64_t thread_number()
{
    static __thread uint64_t number __attribute__((tls_model("initial-exec")));
    if (!number)
        number = (uint64_t)syscall(SYS_gettid);
    return number;
}

static void print(const char *format, va_list list)
{
    char text[1024] = "simcuda: ";
    int prefix = (int)strlen(text);
    int used = vsnprintf(text + prefix, sizeof text - prefix - 1, format, list);
    size_t length = prefix + (used < 0 ? 0 : (size_t)used);
    if (length > sizeof text - 2)
        length = sizeof text - 2;
    text[length++] = '\n';
    if (write(STDERR_FILENO, text, length) < 0)
        return;
}

void note(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    print(format, list);
    va_end(list);
}

void ends_if_reported()
{
    static const bool strict = setting("CUSIM_STRICT", 1) != 0;
    if (!strict || !reported.load())
        return;
    fflush(nullptr);
    _exit(99);
}

__attribute__((destructor)) static void at_exit()
{
    ends_if_reported();
}

cudaError_t result(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

void set_sticky(cudaError_t error)
{
    int none = 0;
    sticky.compare_exchange_strong(none, error);
}

cudaError_t enter(const char *call)
{
    ends_if_reported();
    install_fault_handler();
    if (in_host_function) {
        cusim_report("%s is called from a host function: CUDA calls are not allowed there", call);
        return cudaErrorNotPermitted;
    }
    if (sticky.load())
        return (cudaError_t)sticky.load();
    bool memory = !strcmp(call, "cudaMalloc") || !strcmp(call, "cudaHostAlloc");
    return (cudaError_t)cusim_inject_error(call,
                                           memory ? cudaErrorMemoryAllocation : cudaErrorUnknown);
}

static int own_rank()
{
    for (const char *name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
        if (getenv(name))
            return atoi(getenv(name));
    return 0;
}

/* WHAT[@rankR][:N|:N+][=ERROR] */
static void parse_rule(Rules *rules, const char *environment, const char *text, size_t length)
{
    char copy[128];
    if (length == 0 || length >= sizeof copy || rules->count == 32) {
        note("%s: element is empty or too long", environment);
        return;
    }
    memcpy(copy, text, length);
    copy[length] = 0;
    Rule *rule = &rules->rule[rules->count];
    rule->at = 1;
    if (char *error = strchr(copy, '=')) {
        *error = 0;
        rule->error = atoi(error + 1);
    }
    char *at = strchr(copy, ':');
    char *who = strchr(copy, '@');
    if (at)
        *at++ = 0;
    if (who) {
        *who++ = 0;
        /* cudaMalloc@5 is the fifth call, too */
        if (!strncmp(who, "rank", 4)) {
            if (atoi(who + 4) != own_rank())
                return;
        } else {
            at = who;
        }
    }
    if (at) {
        char *end;
        rule->at = strtol(at, &end, 10);
        rule->onwards = *end == '+';
    }
    snprintf(rule->what, sizeof rule->what, "%.63s", copy);
    rules->count++;
}

Rules *read_rules(const char *environment)
{
    Rules *made = new (quiet_alloc(sizeof(Rules))) Rules();
    const char *text = getenv(environment);
    while (text && *text) {
        size_t length = strcspn(text, ",");
        parse_rule(made, environment, text, length);
        text += length + (text[length] == ',');
    }
    return made;
}
} // namespace sim

using namespace sim;

extern "C" {
int cusim_inject_error(const char *what, int usual)
{
    static Rules *all = read_rules("CUSIM_FAIL");
    for (int i = 0; i < all->count; i++) {
        Rule *rule = &all->rule[i];
        if (strcmp(rule->what, what))
            continue;
        long call = ++rule->calls;
        if (call == rule->at || (rule->onwards && call > rule->at)) {
            note("%s: failure number %ld injected", what, call);
            return rule->error ? rule->error : usual;
        }
    }
    return 0;
}

bool cusim_inject(const char *what)
{
    return cusim_inject_error(what, 1) != 0;
}

void cusim_report(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    print(format, list);
    va_end(list);
    reported.store(true);
}

void cusim_edge_release(void *token)
{
    if (__tsan_release)
        __tsan_release(token);
}

void cusim_edge_acquire(void *token)
{
    if (__tsan_acquire)
        __tsan_acquire(token);
}

/* One instruction: a loop might become a call that the sanitizers watch. */
void cusim_copy(void *dst, const void *src, size_t bytes)
{
#if defined(__x86_64__)
    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(bytes) : : "memory");
#else
    volatile unsigned char *to = (volatile unsigned char *)dst;
    for (size_t i = 0; i < bytes; i++)
        to[i] = ((const unsigned char *)src)[i];
#endif
}

cudaError_t cudaGetLastError(void)
{
    ends_if_reported();
    cudaError_t error = sticky.load() ? (cudaError_t)sticky.load() : last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    ends_if_reported();
    return sticky.load() ? (cudaError_t)sticky.load() : last_error;
}
}
