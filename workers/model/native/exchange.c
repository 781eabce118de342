/* Collectives through shared memory; see exchange.h. */
#include "exchange.h"

enum { PIECE = 1024 };

static float widen(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t narrow(float x) { /* to the nearest, ties to even */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Lane by lane, so that the sum's order is the same whoever computes it. */
static void sum_float32(float *out, const Exchange *e, uint32_t meeting, int64_t count) {
    for (int64_t first = 0; first < count; first += PIECE) {
        int64_t size = count - first < PIECE ? count - first : PIECE;
        memcpy(out + first, (const float *)slot_of(e, 0, meeting) + first, size * sizeof(float));
        for (int rank = 1; rank < e->size; rank++) {
            const float *x = (const float *)slot_of(e, rank, meeting) + first;
            for (int64_t i = 0; i < size; i++) out[first + i] += x[i];
        }
    }
}

static void sum_bfloat16(uint16_t *out, const Exchange *e, uint32_t meeting, int64_t count) {
    float sums[PIECE];
    for (int64_t first = 0; first < count; first += PIECE) {
        int64_t size = count - first < PIECE ? count - first : PIECE;
        memset(sums, 0, sizeof sums);
        for (int rank = 0; rank < e->size; rank++) {
            const uint16_t *x = (const uint16_t *)slot_of(e, rank, meeting) + first;
            for (int64_t i = 0; i < size; i++) sums[i] += widen(x[i]);
        }
        for (int64_t i = 0; i < size; i++) out[first + i] = narrow(sums[i]);
    }
}

/* Bring `bytes`, at most the capacity, to a meeting. Until this lane's next meeting everyone's may be read. */
int headrace_share(Exchange *e, const void *mine, int64_t bytes) {
    int64_t started = now_ns();
    memcpy(slot_of(e, e->rank, e->meetings), mine, bytes);
    arrive(e);
    int late = meet_all(e);
    e->waited_ns += now_ns() - started;
    return late;
}

/* x = the sum of every lane's x. */
int headrace_reduce(Exchange *e, void *x, int64_t count, int type) {
    int64_t started = now_ns(), item = type == FLOAT32 ? 4 : 2, most = e->capacity / item;
    int late = 0;
    for (int64_t first = 0; first < count && !late; first += most) {
        int64_t size = count - first < most ? count - first : most;
        char *here = (char *)x + first * item;
        uint32_t meeting = e->meetings;
        memcpy(slot_of(e, e->rank, meeting), here, size * item);
        arrive(e);
        late = meet_all(e);
        if (late) break;
        if (type == FLOAT32)
            sum_float32((float *)here, e, meeting, size);
        else
            sum_bfloat16((uint16_t *)here, e, meeting, size);
    }
    e->waited_ns += now_ns() - started;
    return late;
}

/* Post `bytes`, in letters of at most the capacity; waits while two are not taken yet. */
int headrace_put(Mailbox *m, const char *data, int64_t bytes) {
    int64_t started = now_ns();
    Counter *put = counters_of(m->memory), *taken = put + 1;
    char *slots = m->memory + MAX_LANES * sizeof(Counter);
    int late = 0;
    for (int64_t first = 0; first < bytes && !late; first += m->capacity) {
        int64_t size = bytes - first < m->capacity ? bytes - first : m->capacity;
        late = wait_for(taken, m->letters - 1, m->spins, m->limit_ns);
        if (late) break;
        memcpy(slots + (m->letters & 1) * m->capacity, data + first, size);
        m->letters++;
        count_up(put);
    }
    m->waited_ns += now_ns() - started;
    return late;
}

/* Receive as many bytes as were posted. */
int headrace_take(Mailbox *m, char *data, int64_t bytes) {
    int64_t started = now_ns();
    Counter *put = counters_of(m->memory), *taken = put + 1;
    const char *slots = m->memory + MAX_LANES * sizeof(Counter);
    int late = 0;
    for (int64_t first = 0; first < bytes && !late; first += m->capacity) {
        int64_t size = bytes - first < m->capacity ? bytes - first : m->capacity;
        late = wait_for(put, m->letters + 1, m->spins, m->limit_ns);
        if (late) break;
        memcpy(data + first, slots + (m->letters & 1) * m->capacity, size);
        m->letters++;
        count_up(taken);
    }
    m->waited_ns += now_ns() - started;
    return late;
}
