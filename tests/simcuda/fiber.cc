/*
 * fiber.cc - runs the CUDA threads of a block.
 *
 * A fiber is a stack on the stream's own OS thread. One fiber runs thread after thread of the block
 * until one has to wait at a barrier or a shuffle; then the next fiber goes on with the threads
 * that have not begun. A kernel without barriers thus needs two switches a block. The last thread
 * to arrive at a barrier frees the others in the order of their arrival. Nobody left to run while
 * some wait: a deadlock, reported.
 *
 * With CUSIM_FIBERS=tsan every CUDA thread has a fiber of its own that the thread sanitizer knows,
 * so that it finds a missing barrier within a block. Barriers then are edges; blocks still run in
 * order.
 */
#include "fiber.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

extern "C" {
__attribute__((weak)) void *__tsan_get_current_fiber(void);
__attribute__((weak)) void *__tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_destroy_fiber(void *fiber);
__attribute__((weak)) void __tsan_switch_to_fiber(void *fiber, unsigned flags);
__thread cusim_context cusim_current __attribute__((tls_model("initial-exec")));
}

namespace sim
{
static const size_t STACK = 256 << 10;
static const int THREADS = 1024, WARPS = THREADS / 32;

struct Fiber {
    void *stack = nullptr;
    void *sanitizer = nullptr;
#if defined(__x86_64__)
    void *top = nullptr; /* saved stack pointer */
#else
    ucontext_t context;
#endif
    uint3 thread = {};
    unsigned number = 0; /* of the CUDA thread in its block */
    int parity = 0;      /* of the shuffle slots */
    Fiber *next = nullptr;
};

/* Threads that wait for the others: all of the block or of a warp. */
struct Meeting {
    Fiber *first = nullptr, *last = nullptr;
    unsigned arrived = 0, expected = 0, generation = 0;
    unsigned votes = 0, result = 0;
    char edge[2] = {0, 0};
};

struct Fibers : Quiet {
    Fiber fiber[THREADS];
    Fiber home; /* the stream's thread itself */
    Fiber *current = nullptr;
    Fiber *ready_first = nullptr, *ready_last = nullptr;
    Fiber *idle[THREADS];
    int idle_count = 0, made = 0, most = 0; /* made: in this block */
    unsigned threads = 0, begun = 0, finished = 0;
    uint3 next = {}; /* index of the thread that begins next */
    void (*call)(const void *) = nullptr;
    const void *arguments = nullptr;
    Meeting block, warp[WARPS];
    unsigned char slot[WARPS][2][32][16];
    bool seen_by_tsan = false;
    bool loose = false;      /* this block's barriers are left out */
    char start = 0, end = 0; /* edges from and to the stream's thread */
};
static __thread Fibers *own __attribute__((tls_model("initial-exec")));

#if defined(__x86_64__)
/* Saves the registers that a call keeps, changes stacks. */
extern "C" void cusim_switch_stack(void **save, void *load);
__asm__(".text\n.type cusim_switch_stack,@function\n.hidden cusim_switch_stack\n"
        "cusim_switch_stack:\n"
        "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
        "mov %rsp,(%rdi); mov %rsi,%rsp\n"
        "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
        "ret\n.size cusim_switch_stack,.-cusim_switch_stack\n");
#endif

static void fiber_main();

static void prepare(Fiber *fiber)
{
    if (!fiber->stack) {
        void *place = mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (place == MAP_FAILED)
            abort();
        mprotect(place, 4096, PROT_NONE);
        fiber->stack = place;
    }
#if defined(__x86_64__)
    void **top = (void **)((char *)fiber->stack + STACK - 64);
    *--top = nullptr; /* keeps the alignment that a called function expects */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    fiber->top = top;
#else
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = STACK;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, fiber_main, 0);
#endif
}

static void go(Fibers *all, Fiber *to)
{
    Fiber *from = all->current;
    if (from == to)
        return;
    all->current = to;
    cusim_current.thread = to->thread;
    if (all->seen_by_tsan)
        __tsan_switch_to_fiber(to->sanitizer, 1);
#if defined(__x86_64__)
    cusim_switch_stack(&from->top, to->top);
#else
    swapcontext(&from->context, &to->context);
#endif
}

static Fiber *fresh(Fibers *all)
{
    Fiber *fiber = all->idle_count ? all->idle[--all->idle_count] : &all->fiber[all->made++];
    if (all->made > all->most)
        all->most = all->made;
    prepare(fiber);
    if (all->seen_by_tsan && !fiber->sanitizer)
        fiber->sanitizer = __tsan_create_fiber(0);
    return fiber;
}

/* A fiber that can go on; home when there is none. */
static Fiber *choose(Fibers *all)
{
    Fiber *next = all->ready_first;
    if (!next)
        return all->begun < all->threads ? fresh(all) : &all->home;
    all->ready_first = next->next;
    if (!all->ready_first)
        all->ready_last = nullptr;
    return next;
}

static void release(Fibers *all, Meeting *meeting)
{
    if (meeting->first) {
        (all->ready_last ? all->ready_last->next : all->ready_first) = meeting->first;
        all->ready_last = meeting->last;
    }
    meeting->first = meeting->last = nullptr;
    meeting->arrived = 0;
    meeting->result = meeting->votes;
    meeting->votes = 0;
    meeting->generation++;
}

static unsigned meet(Fibers *all, Meeting *meeting, unsigned vote)
{
    Fiber *self = all->current;
    char *edge = &meeting->edge[meeting->generation & 1];
    if (all->seen_by_tsan)
        edge_release(edge);
    meeting->votes += vote;
    if (++meeting->arrived == meeting->expected) {
        release(all, meeting);
    } else {
        self->next = nullptr;
        self->thread = cusim_current.thread;
        (meeting->last ? meeting->last->next : meeting->first) = self;
        meeting->last = self;
        go(all, choose(all));
    }
    if (all->seen_by_tsan)
        edge_acquire(edge);
    return meeting->result;
}

/* The thread that begins next; the divisions that its number would need cost more than a small
 * kernel. */
static inline void begin_thread(Fibers *all)
{
    const uint3 dim = cusim_current.block_dim;
    uint3 *next = &all->next;
    cusim_current.thread = *next;
    if (++next->x == dim.x) {
        next->x = 0;
        if (++next->y == dim.y) {
            next->y = 0;
            next->z++;
        }
    }
}

/* Barriers count the threads that have not ended. */
static inline void leave_meeting(Fibers *all, Meeting *meeting)
{
    if (--meeting->expected == meeting->arrived && meeting->arrived)
        release(all, meeting);
}

static inline void run_thread(Fibers *all, Fiber *self)
{
    unsigned number = all->begun++;
    self->number = number;
    self->parity = 0;
    begin_thread(all);
    if (all->seen_by_tsan)
        edge_acquire(&all->start);
    all->call(all->arguments);
    if (all->seen_by_tsan)
        edge_release(&all->end);
    all->finished++;
    leave_meeting(all, &all->block);
    leave_meeting(all, &all->warp[number / 32]);
}

static void fiber_main()
{
    Fibers *all = own;
    Fiber *self = all->current;
    do
        run_thread(all, self);
    while (all->begun < all->threads && !all->seen_by_tsan && !all->ready_first);
    Fiber *next = choose(all);
    if (!all->seen_by_tsan) /* it would take what the next thread does for a sequel of this one */
        all->idle[all->idle_count++] = self;
    go(all, next);
    __builtin_trap();
}

static Fibers *make_fibers()
{
    Fibers *all = new Fibers();
    all->current = &all->home;
    all->seen_by_tsan = environment_is("CUSIM_FIBERS", "tsan") && __tsan_create_fiber;
    if (all->seen_by_tsan)
        all->home.sanitizer = __tsan_get_current_fiber();
    return all;
}

void release_fibers(Fibers *all)
{
    for (int i = 0; all && i < all->most; i++) {
        munmap(all->fiber[i].stack, STACK);
        if (all->fiber[i].sanitizer)
            __tsan_destroy_fiber(all->fiber[i].sanitizer);
    }
    delete all;
}

static void deadlock(Fibers *all)
{
    unsigned waiting = all->block.arrived;
    cusim_report("kernel %s, block (%u,%u,%u): deadlock: %u of %u threads have ended, %u wait at "
                 "__syncthreads, the others for their warps",
                 running_kernel, cusim_current.block.x, cusim_current.block.y,
                 cusim_current.block.z, all->finished, all->threads, waiting);
    ends_if_reported();
    _exit(99);
}

void run_block(Fibers **own_fibers, unsigned threads, bool loose, void (*call)(const void *),
               const void *arguments)
{
    if (!*own_fibers)
        *own_fibers = make_fibers();
    Fibers *all = own = *own_fibers;
    all->threads = threads;
    all->loose = loose;
    all->begun = all->finished = 0;
    all->next = {};
    all->call = call;
    all->arguments = arguments;
    all->block.expected = threads;
    for (unsigned w = 0; w * 32 < threads; w++)
        all->warp[w].expected = threads - w * 32 < 32 ? threads - w * 32 : 32;
    if (all->seen_by_tsan)
        edge_release(&all->start);
    all->idle_count = all->made = 0;
    go(all, choose(all));
    if (all->finished != threads)
        deadlock(all);
    if (all->seen_by_tsan)
        edge_acquire(&all->end);
}
} // namespace sim

using namespace sim;

extern "C" {
void cusim_barrier(void)
{
    if (own->loose)
        return;
    meet(own, &own->block, 0);
}

int cusim_block_count(int predicate)
{
    return (int)meet(own, &own->block, predicate != 0);
}

void cusim_warp_barrier(void)
{
    meet(own, &own->warp[own->current->number / 32], 0);
}

unsigned cusim_ballot(int predicate)
{
    unsigned number = own->current->number;
    return meet(own, &own->warp[number / 32], predicate ? 1u << number % 32 : 0);
}

void cusim_shuffle(const void *value, void *result, size_t bytes, int source)
{
    Fibers *all = own;
    Fiber *self = all->current;
    unsigned warp = self->number / 32, lane = self->number % 32;
    int parity = self->parity;
    self->parity ^= 1;
    __builtin_memcpy(all->slot[warp][parity][lane], value, bytes);
    meet(all, &all->warp[warp], 0);
    bool there = source >= 0 && source < 32 && warp * 32 + (unsigned)source < all->threads;
    __builtin_memcpy(result, all->slot[warp][parity][there ? (unsigned)source : lane], bytes);
}
}
