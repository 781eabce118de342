/* The threads that run a tape together, and meet at a barrier after every operation. Each has a range of an
 * operation's tasks, whose memory it then reads from end to end; who has done all of its own draws from the
 * others' ranges, so that a thread from which the system takes its core does fewer. */
#pragma once
#include <immintrin.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 50 << 10 }; /* about half a millisecond: whoever took a core for a moment is gone by then */

typedef struct {
    int size;
    atomic_int arrived, round, sleepers;
} Team;

/* Whoever waits long sleeps, which leaves the core to the thread that is waited for. */
static void meet(Team *team) {
    int round = atomic_load(&team->round);
    if (atomic_fetch_add(&team->arrived, 1) + 1 == team->size) {
        atomic_store(&team->arrived, 0);
        atomic_store(&team->round, round + 1);
        if (atomic_load(&team->sleepers)) syscall(SYS_futex, &team->round, FUTEX_WAKE_PRIVATE, team->size, NULL, NULL, 0);
        return;
    }
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(&team->round, memory_order_acquire) != round) return;
        _mm_pause();
    }
    atomic_fetch_add(&team->sleepers, 1);
    while (atomic_load(&team->round) == round)
        syscall(SYS_futex, &team->round, FUTEX_WAIT_PRIVATE, round, NULL, NULL, 0);
    atomic_fetch_sub(&team->sleepers, 1);
}

/* A thread's part in one operation: how many tasks of each thread's range were drawn. */
typedef struct {
    atomic_int *drawn;
    int thread, num_threads;
} Share;

/* for each task 0 .. count - 1 that no other thread of the team has drawn */
#define FOR_TASKS(task, share, count)                                                                                  \
    for (int turn = 0; turn < (share)->num_threads; turn++)                                                            \
        for (int owner = ((share)->thread + turn) % (share)->num_threads,                                              \
                 end = (owner + 1) * (count) / (share)->num_threads, task;                                             \
             (task = owner * (count) / (share)->num_threads +                                                          \
                     atomic_fetch_add_explicit((share)->drawn + owner, 1, memory_order_relaxed)) < end;)
