/* What ranks on one host tell each other through memory that they share.
 *
 * An exchange is a meeting of all lanes: each puts bytes into its slot, says so, and waits until all have said
 * so; then everyone reads what it likes. Slots are used in turns, two per rank: whoever puts into one again has
 * met all others since, at the meeting in between, to which they came only when they had done reading.
 *
 * A mailbox is a one-way street from one rank to another, two letters long.
 *
 * Nobody waits longer than `limit_ns`: then the call returns 1 and the gang is done for. Structures are those of
 * `workers/shards/shared.py`. Portable C11, for any CPU.
 */
#pragma once
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_LANES = 64, SLEEP_NS = 20 * 1000 * 1000, FLOAT32 = 0, BFLOAT16 = 1 };

typedef struct {
    _Alignas(64) _Atomic uint32_t count; /* grows by one with each event */
    _Atomic uint32_t sleepers;
} Counter;

typedef struct {
    char *memory; /* MAX_LANES counters, then slots [2][size][capacity] */
    int64_t capacity, limit_ns, waited_ns;
    int32_t rank, size, spins;
    uint32_t meetings;
} Exchange;

typedef struct {
    char *memory; /* counters of letters put and taken, then slots [2][capacity] */
    int64_t capacity, limit_ns, waited_ns;
    int32_t spins;
    uint32_t letters;
} Mailbox;

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline void count_up(Counter *counter) {
    atomic_fetch_add(&counter->count, 1);
    if (atomic_load(&counter->sleepers)) syscall(SYS_futex, &counter->count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Until `counter` has reached `wanted`: spin a little, then sleep. 1 if that took longer than `limit_ns`. */
static inline int wait_for(Counter *counter, uint32_t wanted, int spins, int64_t limit_ns) {
    for (int spin = 0; spin < spins; spin++) {
        if ((int32_t)(atomic_load_explicit(&counter->count, memory_order_acquire) - wanted) >= 0) return 0;
        pause_cpu();
    }
    int64_t deadline = now_ns() + limit_ns;
    const struct timespec nap = {0, SLEEP_NS};
    int late = 0;
    atomic_fetch_add(&counter->sleepers, 1);
    for (;;) {
        uint32_t seen = atomic_load(&counter->count);
        if ((int32_t)(seen - wanted) >= 0) break;
        if (now_ns() > deadline) {
            late = 1;
            break;
        }
        syscall(SYS_futex, &counter->count, FUTEX_WAIT, seen, &nap, NULL, 0);
    }
    atomic_fetch_sub(&counter->sleepers, 1);
    return late;
}

static inline Counter *counters_of(char *memory) { return (Counter *)memory; }

/* Where `rank` puts what it brings to the next meeting. */
static inline char *slot_of(const Exchange *e, int rank, uint32_t meeting) {
    return e->memory + MAX_LANES * sizeof(Counter) + ((size_t)(meeting & 1) * e->size + rank) * e->capacity;
}

/* The slot is filled: tell the others. */
static inline void arrive(Exchange *e) {
    e->meetings++;
    count_up(counters_of(e->memory) + e->rank);
}

/* Until every lane has arrived at the meeting at which this one is. */
static inline int meet_all(const Exchange *e) {
    for (int step = 1; step < e->size; step++) {
        int rank = (e->rank + step) % e->size;
        if (wait_for(counters_of(e->memory) + rank, e->meetings, e->spins, e->limit_ns)) return 1;
    }
    return 0;
}
