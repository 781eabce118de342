/* The threads that run a tape together. They draw tasks from a counter, so that a thread from which the
 * system takes its core does fewer of them, and meet at a barrier after every operation. */
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

/* for each task 0 .. count - 1 that no other thread of the team has drawn */
#define FOR_TASKS(task, counter, count)                                                                                \
    for (int task; (task = atomic_fetch_add_explicit((counter), 1, memory_order_relaxed)) < (count);)
