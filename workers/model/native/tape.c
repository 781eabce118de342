/* A decoder's forward pass as a tape of operations, run by one team of threads without a word of Python
 * between them, for CPUs that multiply bf16 (AVX512-BF16).
 *
 * Every row is computed by the same instructions in the same order whatever stands beside it, so a token's
 * result does not depend on the batch, on how a prompt was cut, or on the number of threads.
 * Sizes of rows are multiples of 16 elements, head dimensions of 32, blocks of 16 tokens.
 * The structures are those of `tape.py`.
 */
#include <omp.h>

#include "attention.h"
#include "attention_int8.h"
#include "exchange.h"
#include "linear.h"
#include "rows.h"
#include "team.h"

enum { EMBED, GATHER, NORM, ADD_NORM, NORM_HEADS, QUANTISE, LINEAR, ROTATE_STORE, ATTEND, REDUCE, ADD };
enum { ALL_ROWS, WANTED_ROWS };
enum { NUM_BUFFERS = 10, PARTIAL = 9 /* this lane's slot in the exchange */, TASK_ELEMENTS = 4 << 10 };

/* One operation. `out`, `in` and `base` are numbers of buffers; what an operation does not name it ignores.
 *
 * EMBED         out = weight[token - first] * value         size, first, inputs: tokens known, others are 0; form
 * GATHER        out = in[wanted]                            size
 * NORM          out = rms_norm(in) * weight                 size, value: epsilon
 * ADD_NORM      base += in; out = rms_norm(base) * weight   size, value: epsilon
 * NORM_HEADS    rms_norm of heads `first` .. in place       size: of a row, heads, first, value: epsilon
 * QUANTISE      out = in in 8 bits, see grouped.h           size
 * LINEAR        out = in * weight + bias                    inputs, size: outputs, format, form, activation
 * ROTATE_STORE  q, k of `out` turned; k, v into the cache   layer, weight: turns, pairs
 * ATTEND        out = attention of the queries in `in`      layer, window
 * REDUCE        out = sum of every lane's PARTIAL           size
 * ADD           base += in                                  size
 */
typedef struct {
    int32_t code, rows, out, in, base;
    int32_t size, inputs, format, form, activation, heads, first, layer, pairs, window;
    float value;
    const void *weight, *bias;
} Op;

typedef struct {
    int32_t q_heads, kv_heads, dim, block_tokens;
    int32_t kv_number_bytes, kv_block_bytes; /* 2: bf16, 1: 8 bits with scales */
    float attention_scale;
} Shape;

/* One step. `wanted` are the rows whose hidden state is asked for; `wanted_chunks` are what they attend to. */
typedef struct {
    int32_t num_rows, num_wanted, num_chunks, num_wanted_chunks;
    const int32_t *tokens, *positions, *slots, *wanted, *blocks;
    const Chunk *chunks, *wanted_chunks;
    char *const *layers; /* each layer's cache, see attention.h and attention_int8.h */
    void *buffers[NUM_BUFFERS];
} Step;

typedef struct {
    const Shape *shape;
    const Step *step;
    Tile *tiles[2]; /* of all chunks, and of the wanted ones */
    int num_tiles[2];
    Exchange *exchange; /* with the other lanes, or NULL */
    atomic_int late;
} Run;

/* A thread's place in the run: its share of the present operation, and the meeting of lanes that comes next. */
typedef struct {
    Share share;
    uint32_t meeting;
} Place;

static void *buffer_of(const Run *run, int number, const Place *place) {
    return number == PARTIAL ? slot_of(run->exchange, run->exchange->rank, place->meeting) : run->step->buffers[number];
}

static int num_rows(const Run *run, const Op *op) {
    return op->rows == WANTED_ROWS ? run->step->num_wanted : run->step->num_rows;
}

/* for each row `t` of `rows`, in tasks that are worth drawing */
#define FOR_ROWS(t, row_size, rows, share)                                                                             \
    for (int some = TASK_ELEMENTS / (row_size) + 1, once = 1; once; once = 0)                                          \
        FOR_TASKS(task, share, ((rows) + some - 1) / some)                                                           \
            for (int t = task * some; t < (rows) && t < (task + 1) * some; t++)

static Attention attention_of(const Run *run, const Op *op) {
    const Shape *s = run->shape;
    const Step *step = run->step;
    int wanted = op->rows == WANTED_ROWS;
    return (Attention){step->buffers[op->out], step->buffers[op->in], step->layers[op->layer],
                       wanted ? step->wanted_chunks : step->chunks, step->blocks, s->q_heads, s->kv_heads, s->dim,
                       s->block_tokens, s->kv_number_bytes, s->kv_block_bytes, op->window, s->attention_scale};
}

static void rotate_store(const Run *run, const Op *op, const Share *share) {
    const Step *step = run->step;
    const Attention a = attention_of(run, op);
    int stride = (a.q_heads + 2 * a.kv_heads) * a.dim;
    FOR_ROWS(t, stride, num_rows(run, op), share) {
        bf16 *row = (bf16 *)step->buffers[op->out] + (size_t)t * stride;
        const float *turn = (const float *)op->weight + (size_t)step->positions[t] * 2 * op->pairs;
        rotate_row(row, turn, a.q_heads + a.kv_heads, a.dim, op->pairs);
        int token = step->slots[t] % a.block_tokens, place = token % KEYS;
        char *block = (char *)a.kv + (int64_t)(step->slots[t] / a.block_tokens) * a.block_bytes;
        uint16_t *scales = (uint16_t *)(block + numbers_before(&a, 2, 0, 0));
        for (int h = 0; h < a.kv_heads; h++) {
            const bf16 *key = row + (a.q_heads + h) * a.dim, *value = key + a.kv_heads * a.dim;
            int64_t key_at = numbers_before(&a, 0, h, token - place), value_at = numbers_before(&a, 1, h, token - place);
            if (a.number_bytes == 2) {
                store_key((bf16 *)block + key_at, place, key, a.dim);
                store_value((bf16 *)block + value_at, place, value, a.dim);
            } else {
                store_int8(block + key_at, block + value_at, scales + key_at / a.dim + place,
                           scales + value_at / a.dim + place, place, key, value, a.dim);
            }
        }
    }
}

static void attend(const Run *run, const Op *op, const Share *share) {
    const Attention a = attention_of(run, op);
    int wanted = op->rows == WANTED_ROWS;
    const Tile *tiles = run->tiles[wanted];
    FOR_TASKS(tile, share, run->num_tiles[wanted]) {
        if (tile + 1 < end) foresee_tile(&a, tiles + tile + 1); /* likely the next to be drawn */
        if (a.number_bytes == 2)
            attend_tile(&a, tiles + tile);
        else
            attend_int8_tile(&a, tiles + tile);
    }
}

/* The lanes' sum, in their order. Every thread waits for all lanes by itself. */
static void reduce(Run *run, const Op *op, Place *place) {
    Exchange *e = run->exchange;
    int64_t started = place->share.thread ? 0 : now_ns();
    int size = op->size, rows = num_rows(run, op), rank = e->rank;
    if (place->share.thread == 0) count_up(counters_of(e->memory) + rank);
    for (int step = 1; step < e->size && !run->late; step++)
        if (wait_for(counters_of(e->memory) + (rank + step) % e->size, place->meeting + 1, e->spins, e->limit_ns))
            run->late = 1;
    const Share *share = &place->share;
    FOR_ROWS(t, size, rows, share)
        for (int i = 0; i < size; i += LANES) {
            size_t at = (size_t)t * size + i;
            __m512 sum = _mm512_loadu_ps((const float *)slot_of(e, 0, place->meeting) + at);
            for (int lane = 1; lane < e->size; lane++)
                sum = _mm512_add_ps(sum, _mm512_loadu_ps((const float *)slot_of(e, lane, place->meeting) + at));
            store((bf16 *)run->step->buffers[op->out] + at, sum);
        }
    place->meeting++;
    if (place->share.thread == 0) e->waited_ns += now_ns() - started;
}

static void embed(const Run *run, const Op *op, void *out, const Share *share) {
    int size = op->size, rows = num_rows(run, op);
    FOR_ROWS(t, size, rows, share) {
        int token = run->step->tokens[t] - op->first;
        int is_known = token >= 0 && token < op->inputs;
        const bf16 *row = (const bf16 *)op->weight + (size_t)(is_known ? token : 0) * size;
        float scale = is_known ? op->value : 0.0f;
        if (op->form == TO_FP32)
            widen_row((float *)out + (size_t)t * size, row, size, scale);
        else
            scale_row((bf16 *)out + (size_t)t * size, row, size, scale);
    }
}

/* One thread's part in an operation. */
static void execute(Run *run, const Op *op, Place *place) {
    const Step *step = run->step;
    const Share *share = &place->share;
    int rows = num_rows(run, op), size = op->size;
    bf16 *out = buffer_of(run, op->out, place), *in = step->buffers[op->in], *base = step->buffers[op->base];
    const bf16 *weight = op->weight;
    switch (op->code) {
    case EMBED: embed(run, op, out, share); break;
    case REDUCE: reduce(run, op, place); break;
    case ADD:
        FOR_ROWS(t, size, rows, share) add_row(base + (size_t)t * size, in + (size_t)t * size, size);
        break;
    case GATHER:
        FOR_ROWS(t, size, rows, share)
            memcpy(out + (size_t)t * size, in + (size_t)step->wanted[t] * size, (size_t)size * sizeof(bf16));
        break;
    case NORM:
        FOR_ROWS(t, size, rows, share)
            norm_row(out + (size_t)t * size, in + (size_t)t * size, weight, size, op->value);
        break;
    case ADD_NORM:
        FOR_ROWS(t, size, rows, share)
            add_norm_row(out + (size_t)t * size, base + (size_t)t * size, in + (size_t)t * size, weight, size, op->value);
        break;
    case NORM_HEADS:
        FOR_ROWS(t, size, rows, share)
            for (int h = op->first; h < op->first + op->heads; h++) {
                bf16 *head = out + (size_t)t * size + (size_t)h * run->shape->dim;
                norm_row(head, head, weight, run->shape->dim, op->value);
            }
        break;
    case QUANTISE:
        FOR_ROWS(t, size, rows, share)
            quantise_row((int8_t *)out + t * quantised_size(size), in + (size_t)t * size, size);
        break;
    case LINEAR: {
        Linear l = {out, in, weight, op->bias, op->inputs, size, op->format, op->form, op->activation};
        multiply(&l, rows, share);
        break;
    }
    case ROTATE_STORE: rotate_store(run, op, share); break;
    case ATTEND: attend(run, op, share); break;
    }
}

/* Run the operations one after the other. Returns 0, 1 if there is no memory for it, 2 if a lane did not come. */
int headrace_run(const Op *ops, int num_ops, const Shape *shape, const Step *step, int threads, Exchange *exchange) {
    Run run = {shape, step, {NULL, NULL}, {0, 0}, exchange, 0};
    const uint32_t first_meeting = exchange ? exchange->meetings : 0;
    const Chunk *chunks[2] = {step->chunks, step->wanted_chunks};
    int num_chunks[2] = {step->num_chunks, step->num_wanted_chunks};
    for (int i = 0; i < 2; i++)
        run.num_tiles[i] = cut(chunks[i], num_chunks[i], shape->q_heads, shape->kv_heads, NULL);
    atomic_int *drawn = calloc((size_t)num_ops * threads, sizeof *drawn);
    run.tiles[0] = malloc((size_t)(run.num_tiles[0] + run.num_tiles[1] + 1) * sizeof(Tile));
    if (drawn && run.tiles[0]) {
        run.tiles[1] = run.tiles[0] + run.num_tiles[0];
        for (int i = 0; i < 2; i++) cut(chunks[i], num_chunks[i], shape->q_heads, shape->kv_heads, run.tiles[i]);
        Team team = {0, 0, 0, 0};
#pragma omp parallel num_threads(threads)
        {
#pragma omp single
            team.size = omp_get_num_threads(); /* the system may give fewer than were asked for */
            Place place = {{drawn, omp_get_thread_num(), team.size}, first_meeting};
            for (int i = 0; i < num_ops; i++) {
                execute(&run, ops + i, &place);
                place.share.drawn += threads;
                if (i + 1 < num_ops) meet(&team); /* the end of the region is the last meeting */
            }
            if (exchange && place.share.thread == 0) exchange->meetings = place.meeting;
        }
    }
    int failed = !drawn || !run.tiles[0];
    free(drawn);
    free(run.tiles[0]);
    return failed ? 1 : run.late ? 2 : 0;
}
