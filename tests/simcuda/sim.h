/*
 * sim.h - inside the simulated CUDA runtime: locks, streams, records of events, captured graphs.
 *
 * Everything here is unseen by the thread sanitizer: locks are futexes without pthread calls,
 * memory comes from malloc with the sanitizer told to look away. What it does see are the edges
 * that CUDA promises, stated by edge_release() and edge_acquire(): from the host to a piece of work
 * (each Op has its own token), from work to whoever waits for a record of an event, and from a
 * record to the work of another stream that waits.
 *
 * Locks: `api` guards streams' capture state, events, graphs and registries, and is never held
 * while anybody waits for work; each stream's queue has a lock of its own, taken last.
 */
#ifndef DDP_TESTS_SIMCUDA_SIM_H
#define DDP_TESTS_SIMCUDA_SIM_H

#include "core.h"

#include <atomic>
#include <cstring>
#include <vector>

namespace sim
{
struct Lock {
    std::atomic<uint32_t> state{0};
    void lock();
    void unlock();
};
struct Guard {
    Lock &held;
    explicit Guard(Lock &lock) : held(lock)
    {
        held.lock();
    }
    ~Guard()
    {
        held.unlock();
    }
    Guard(const Guard &) = delete;
    Guard &operator=(const Guard &) = delete;
};
void futex_wait(std::atomic<uint32_t> *word, uint32_t seen, int timeout_ms);
void futex_wake(std::atomic<uint32_t> *word);

void *quiet_alloc(size_t bytes);
void quiet_free(void *memory);
struct Quiet {
    static void *operator new(size_t bytes)
    {
        return quiet_alloc(bytes);
    }
    static void operator delete(void *memory)
    {
        quiet_free(memory);
    }
};
template <class T> struct QuietAllocator {
    using value_type = T;
    QuietAllocator() = default;
    template <class U> QuietAllocator(const QuietAllocator<U> &)
    {
    }
    T *allocate(size_t count)
    {
        return static_cast<T *>(quiet_alloc(count * sizeof(T)));
    }
    void deallocate(T *memory, size_t)
    {
        quiet_free(memory);
    }
    bool operator==(const QuietAllocator &) const
    {
        return true;
    }
    bool operator!=(const QuietAllocator &) const
    {
        return false;
    }
};
template <class T> using List = std::vector<T, QuietAllocator<T>>;

inline void edge_release(void *token)
{
    cusim_edge_release(token);
}
inline void edge_acquire(void *token)
{
    cusim_edge_acquire(token);
}

extern Lock api;
extern std::atomic<int> sticky; /* the cudaError_t that every call gives from now on */
int64_t now_ns();

/* One cudaEventRecord: done once the stream has come so far. */
struct Record : Quiet {
    std::atomic<uint32_t> done{0};
    std::atomic<int> references{1};
    int64_t ns = 0;
    char edge = 0;
    Record *hold()
    {
        references++;
        return this;
    }
    void drop()
    {
        if (--references == 0)
            delete this;
    }
    void fire();
    void wait();
    bool ready();
};

/* Work that may run many times; the last holder calls del. */
struct Closure : Quiet {
    const char *name;
    void (*run)(void *);
    void (*del)(void *);
    void *arg;
    std::atomic<int> references{1};
    Closure(const char *n, void (*r)(void *), void (*d)(void *), void *a)
        : name(n), run(r), del(d), arg(a)
    {
    }
    Closure *hold()
    {
        references++;
        return this;
    }
    void drop();
};

struct Op : Quiet {
    Op *next = nullptr;
    Closure *closure;
    bool always; /* also when the device is in error: records fire, nobody hangs */
    char edge = 0;
    Op(Closure *c, bool a) : closure(c), always(a)
    {
    }
};

struct Event;
struct Node {
    Closure *closure;
    List<int> after;
    Event *stamp; /* recorded by each launch, behind the closure; null: none */
};
struct Graph : Quiet {
    List<Node> nodes;
    ~Graph();
};
struct Stream;
struct Capture : Quiet {
    uint64_t id = 0;
    Graph *graph = nullptr;
    Stream *origin = nullptr;
    int mode = 0;
    uint64_t thread = 0;
    bool invalid = false;
    List<Stream *> streams; /* origin included */
};

struct Fibers;
struct Stream : Quiet {
    int device = 0;
    unsigned flags = 0;
    int priority = 0;
    uint64_t number = 0; /* counted from 1 in this process, legacy streams included */
    uint64_t given = 0;  /* works given so far */
    uint64_t legacy_seen =
        0; /* how much of the legacy stream's work this stream is ordered behind */
    bool legacy = false;
    Capture *capture = nullptr;
    List<int> tail; /* the nodes that the next one follows, while capturing */
    Lock lock;      /* the queue */
    Op *first = nullptr, *last = nullptr;
    std::atomic<uint32_t> signal{0};
    bool ending = false;
    Fibers *fibers = nullptr; /* of the stream's thread */
    void *arguments = nullptr;
};

/* Without `api`. The stream of a handle, or NULL and an error for one that does not live. */
Stream *find_stream(cudaStream_t handle);
Stream *new_stream(int device, unsigned flags, int priority);
Stream *running_stream(); /* of the calling thread, if it is a stream's */
void end_stream(Stream *stream);
/* With `api` held. */
void push(Stream *stream, Closure *closure, bool always);
void enqueue(Stream *stream, Closure *closure);
Record *record(Stream *stream);
/* The event's last record is now what the stream was given so far; a dead event is reported. */
void stamp_event(Event *event, Stream *stream);
void wait_in_stream(Stream *stream, Record *record);
bool stream_lives(const Stream *stream);
/* Without `api`. Waits for what every stream of the device (all: -1) was given. */
void drain(int device);

uint64_t thread_number();
/* With `api` held: may this call be made while somebody captures? Invalidates the capture if not.
 */
cudaError_t forbidden_by_capture(const char *call);
cudaError_t invalidate(Capture *capture, const char *call);

/* Every entry point: CUSIM_FAIL, the error that stays, a report that is due. `result` remembers
 * errors. */
cudaError_t enter(const char *call);
cudaError_t result(cudaError_t error);
void set_sticky(cudaError_t error);
void ends_if_reported();
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
long setting(const char *name, long otherwise);
bool environment_is(const char *name, const char *value);
int fibers_seen_by_tsan();

/* One element of CUSIM_FAIL or CUSIM_BUG. */
struct Rule {
    char what[64];
    long at;
    bool onwards;
    int error;
    std::atomic<long> calls;
};
struct Rules {
    Rule rule[32];
    int count;
};
Rules *read_rules(const char *environment);

/* CUSIM_BUG: is this the place? */
bool mistake(const char *what, const char *name);
bool wait_is_left_out(const Stream *waits, const Stream *awaited);
bool sync_is_left_out(const Stream *stream);
void stream_name(const Stream *stream, char *text, size_t size);

/* Kinds of memory. */
enum Kind { HOST, PINNED, DEVICE };
struct Block {
    uintptr_t base;
    size_t bytes;
    uintptr_t start; /* of the pages */
    size_t pages;
    int device, ordinal;
    unsigned flags;
    bool live;
};
Kind kind_of(const void *p);
bool lies_within(const void *p, size_t bytes); /* host memory: true */
void explain_fault(uintptr_t address, char *text, size_t size);
cudaError_t device_alloc(void **out, size_t bytes);
void read_range(const void *p, size_t bytes);
void write_range(void *p, size_t bytes);
void install_fault_handler();

int device_count();
int physical_device(int visible);
int current_device();
Stream *legacy_stream(int device);

/* The kernel that the calling thread runs, for messages. */
extern __thread const char *running_kernel __attribute__((tls_model("initial-exec")));
extern __thread bool in_host_function __attribute__((tls_model("initial-exec")));
} // namespace sim

#define CUSIM_ENTER(name)                                                                          \
    do {                                                                                           \
        cudaError_t entered_ = sim::enter(name);                                                   \
        if (entered_ != cudaSuccess)                                                               \
            return sim::result(entered_);                                                          \
    } while (0)

#endif
