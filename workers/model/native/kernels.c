/* What a decoder does besides its matrix products, for CPUs that multiply bf16 (AVX512-BF16).
 *
 * Every row is computed by the same instructions in the same order whatever stands beside it, so a token's
 * result does not depend on the batch, on how a prompt was cut, or on the number of threads.
 * Sizes of rows are multiples of 16 elements, head dimensions of 32, blocks of 16 tokens.
 */
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t bf16;
#define INLINE static inline __attribute__((always_inline))

enum { LANES = 16, KEYS = 16, ROWS = 4, SCORE_BYTES = 128 << 10, SERIAL_ELEMENTS = 16 << 10 };

INLINE __m512 load(const bf16 *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

INLINE void store(bf16 *p, __m512 v) { _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(v)); }

/* e^x to about one unit in the last place, for x <= 0 and moderate x > 0; -inf gives 0. */
INLINE __m512 exp16(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-104.0f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(p, n);
}

INLINE void norm_row(bf16 *out, const bf16 *x, const bf16 *weight, int size, float eps) {
    __m512 squares = _mm512_setzero_ps();
    for (int i = 0; i < size; i += LANES) {
        __m512 v = load(x + i);
        squares = _mm512_fmadd_ps(v, v, squares);
    }
    float mean = _mm512_reduce_add_ps(squares) / (float)size + eps;
    __m512 scale = _mm512_set1_ps(1.0f / __builtin_sqrtf(mean));
    for (int i = 0; i < size; i += LANES)
        store(out + i, _mm512_mul_ps(_mm512_mul_ps(load(x + i), scale), load(weight + i)));
}

/* out = rms_norm(x) */
void headrace_norm(bf16 *out, const bf16 *x, const bf16 *weight, int rows, int size, float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * size > SERIAL_ELEMENTS)
    for (int t = 0; t < rows; t++) norm_row(out + (size_t)t * size, x + (size_t)t * size, weight, size, eps);
}

/* residual += x; out = rms_norm(residual) */
void headrace_add_norm(bf16 *out, bf16 *residual, const bf16 *x, const bf16 *weight, int rows, int size, float eps,
                       int threads) {
#pragma omp parallel for num_threads(threads) if (rows * size > SERIAL_ELEMENTS)
    for (int t = 0; t < rows; t++) {
        bf16 *r = residual + (size_t)t * size;
        const bf16 *v = x + (size_t)t * size;
        for (int i = 0; i < size; i += LANES) store(r + i, _mm512_add_ps(load(r + i), load(v + i)));
        norm_row(out + (size_t)t * size, r, weight, size, eps);
    }
}

/* rms_norm in place of `heads` heads at the start of each row */
void headrace_norm_heads(bf16 *x, const bf16 *weight, int rows, int stride, int heads, int dim, float eps,
                         int threads) {
#pragma omp parallel for num_threads(threads) if (rows * heads * dim > SERIAL_ELEMENTS)
    for (int t = 0; t < rows; t++)
        for (int h = 0; h < heads; h++) {
            bf16 *head = x + (size_t)t * stride + (size_t)h * dim;
            norm_row(head, head, weight, dim, eps);
        }
}

/* out = activation(gate) * up, of rows that hold gate, then up; activation 0 is SiLU, 1 is GELU by tanh */
void headrace_gate(bf16 *out, const bf16 *gate_up, int rows, int size, int activation, int threads) {
    const __m512 one = _mm512_set1_ps(1.0f);
#pragma omp parallel for num_threads(threads) if (rows * size > SERIAL_ELEMENTS)
    for (int t = 0; t < rows; t++) {
        const bf16 *gate = gate_up + (size_t)t * 2 * size, *up = gate + size;
        for (int i = 0; i < size; i += LANES) {
            __m512 g = load(gate + i), z = g;
            if (activation == 1) { /* 0.5 (1 + tanh y) = 1 / (1 + e^-2y) */
                __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(g, g), _mm512_set1_ps(0.044715f), one);
                z = _mm512_mul_ps(_mm512_mul_ps(g, cubic), _mm512_set1_ps(1.5957691216f));
            }
            z = _mm512_min_ps(_mm512_sub_ps(_mm512_setzero_ps(), z), _mm512_set1_ps(80.0f));
            __m512 gated = _mm512_div_ps(g, _mm512_add_ps(one, exp16(z)));
            store(out + (size_t)t * size + i, _mm512_mul_ps(gated, load(up + i)));
        }
    }
}

/* Turn the first `pairs` pairs of the q and k heads of each row, then copy k and v into their slots.
 * A row of qkv holds q, k and v heads; turns holds (cos, sin) of each pair by position; kv is [2, H, M, D]. */
void headrace_rotate_store(bf16 *qkv, bf16 *kv, const float *turns, const int64_t *positions, const int64_t *slots,
                           int rows, int q_heads, int kv_heads, int dim, int pairs, int64_t num_slots, int threads) {
    int stride = (q_heads + 2 * kv_heads) * dim;
#pragma omp parallel for num_threads(threads) if (rows * stride > SERIAL_ELEMENTS)
    for (int t = 0; t < rows; t++) {
        bf16 *row = qkv + (size_t)t * stride;
        const float *turn = turns + positions[t] * 2 * pairs;
        for (int h = 0; h < q_heads + kv_heads; h++)
            for (int p = 0; p < 2 * pairs; p += LANES) { /* 8 pairs: x (c, c) + swapped x (-s, s) */
                __m512 x = load(row + h * dim + p), cs = _mm512_loadu_ps(turn + p);
                __m512 turned = _mm512_mul_ps(_mm512_permute_ps(x, 0xB1), _mm512_movehdup_ps(cs));
                store(row + h * dim + p, _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(cs), turned));
            }
        for (int h = 0; h < 2 * kv_heads; h++)
            memcpy(kv + (h * num_slots + slots[t]) * dim, row + (q_heads + h) * dim, dim * sizeof(bf16));
    }
}

/* 16 keys of `dim` elements, to vectors that hold elements 2i and 2i + 1 of all 16 keys. */
INLINE void pack_keys(__m512i *packed, const bf16 *keys, int dim) {
    for (int first = 0; first < dim; first += 32) {
        __m512i a[16], b[16];
        for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(keys + (size_t)i * dim + first);
        for (int i = 0; i < 16; i += 2) {
            b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
            b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
        }
        for (int i = 0; i < 16; i += 4) {
            a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
            a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
            a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
            a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
        }
        for (int i = 0; i < 4; i++) {
            __m512i lo = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x88), hi = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x88);
            __m512i lo2 = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xDD), hi2 = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xDD);
            packed[first / 2 + i] = _mm512_shuffle_i32x4(lo, hi, 0x88);
            packed[first / 2 + 8 + i] = _mm512_shuffle_i32x4(lo, hi, 0xDD);
            packed[first / 2 + 4 + i] = _mm512_shuffle_i32x4(lo2, hi2, 0x88);
            packed[first / 2 + 12 + i] = _mm512_shuffle_i32x4(lo2, hi2, 0xDD);
        }
    }
}

/* 16 values of `dim` elements, to vectors that interleave keys 2i and 2i + 1: [8][dim / 16]. */
INLINE void pack_values(__m512i *packed, const bf16 *values, int dim) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int pair = 0; pair < 8; pair++)
        for (int first = 0; first < dim; first += 32) {
            __m512i even = _mm512_loadu_si512(values + (size_t)2 * pair * dim + first);
            __m512i odd = _mm512_loadu_si512(values + (size_t)(2 * pair + 1) * dim + first);
            packed[pair * (dim / 16) + first / 16] = _mm512_permutex2var_epi16(even, low, odd);
            packed[pair * (dim / 16) + first / 16 + 1] = _mm512_permutex2var_epi16(even, high, odd);
        }
}

/* Scores of `count` query rows against 16 packed keys. */
INLINE void score_rows(float *scores, int score_stride, const bf16 *queries, const __m512i *keys, int dim, int count,
                       float scale) {
    __m512 sums[ROWS];
    for (int r = 0; r < count; r++) sums[r] = _mm512_setzero_ps();
    for (int i = 0; i < dim / 2; i++)
        for (int r = 0; r < count; r++) {
            int32_t pair;
            memcpy(&pair, queries + (size_t)r * dim + 2 * i, sizeof pair);
            sums[r] = _mm512_dpbf16_ps(sums[r], (__m512bh)keys[i], (__m512bh)_mm512_set1_epi32(pair));
        }
    for (int r = 0; r < count; r++)
        _mm512_storeu_ps(scores + (size_t)r * score_stride, _mm512_mul_ps(sums[r], _mm512_set1_ps(scale)));
}

/* mixed += weights of 16 keys times their packed values, for `count` rows and 64 or 32 elements from `first` on. */
INLINE void mix_rows(float *mixed, const bf16 *weights, int weight_stride, const __m512i *values, int dim, int first,
                     int vectors, int count) {
    __m512 sums[ROWS][4];
    for (int r = 0; r < count; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = _mm512_loadu_ps(mixed + (size_t)r * dim + first + v * LANES);
    for (int pair = 0; pair < 8; pair++)
        for (int r = 0; r < count; r++) {
            int32_t two;
            memcpy(&two, weights + (size_t)r * weight_stride + 2 * pair, sizeof two);
            __m512bh both = (__m512bh)_mm512_set1_epi32(two);
            for (int v = 0; v < vectors; v++)
                sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)values[pair * (dim / 16) + first / 16 + v], both);
        }
    for (int r = 0; r < count; r++)
        for (int v = 0; v < vectors; v++) _mm512_storeu_ps(mixed + (size_t)r * dim + first + v * LANES, sums[r][v]);
}

/* Call with a constant number of rows, so that the sums stay in registers. */
#define BY_ROWS(rows, call)                                                                                            \
    for (int r = 0; r < (rows); r += ROWS) {                                                                           \
        switch ((rows) - r) {                                                                                          \
        case 1: { enum { n = 1 }; call; break; }                                                                       \
        case 2: { enum { n = 2 }; call; break; }                                                                       \
        case 3: { enum { n = 3 }; call; break; }                                                                       \
        default: { enum { n = ROWS }; call; break; }                                                                   \
        }                                                                                                              \
    }

/* Weights of one row: softmax over the keys low .. high, 0 elsewhere; returns what to divide by. */
INLINE float soften(bf16 *weights, const float *scores, int low, int high, int num_keys) {
    __m512 best = _mm512_set1_ps(-3.4e38f), total = _mm512_setzero_ps();
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (int k = low & ~(KEYS - 1); k < high; k += KEYS) {
        __m512i key = _mm512_add_epi32(lanes, _mm512_set1_epi32(k));
        __mmask16 seen = _mm512_cmplt_epi32_mask(key, _mm512_set1_epi32(high)) &
                         _mm512_cmpge_epi32_mask(key, _mm512_set1_epi32(low));
        best = _mm512_mask_max_ps(best, seen, best, _mm512_loadu_ps(scores + k));
    }
    best = _mm512_set1_ps(_mm512_reduce_max_ps(best));
    for (int k = 0; k < num_keys; k += KEYS) {
        __m512i key = _mm512_add_epi32(lanes, _mm512_set1_epi32(k));
        __mmask16 seen = _mm512_cmplt_epi32_mask(key, _mm512_set1_epi32(high)) &
                         _mm512_cmpge_epi32_mask(key, _mm512_set1_epi32(low));
        __m512 weight = _mm512_maskz_mov_ps(seen, exp16(_mm512_sub_ps(_mm512_loadu_ps(scores + k), best)));
        total = _mm512_add_ps(total, weight);
        store(weights + k, weight);
    }
    return _mm512_reduce_add_ps(total);
}

/* What each thread works in; grows as needed and is kept. */
typedef struct {
    char *memory;
    size_t size;
} Scratch;
static _Thread_local Scratch scratch;

static char *scratch_of(size_t size) {
    if (scratch.size < size) {
        free(scratch.memory);
        scratch.size = (size + 4095) & ~(size_t)4095;
        scratch.memory = aligned_alloc(64, scratch.size);
        if (!scratch.memory) abort();
    }
    return scratch.memory;
}

typedef struct {
    int first_row, num_queries, start, table; /* table: where its blocks begin in the list of all blocks */
} Chunk;

typedef struct {
    bf16 *out;
    const bf16 *qkv, *kv;
    const int32_t *blocks;
    int q_heads, kv_heads, dim, block_tokens, window;
    int64_t num_blocks;
    float scale;
} Attention;

/* Queries `from` .. `from + count` of a chunk, all query heads of one KV head. */
static void attend_tile(const Attention *a, const Chunk *c, int head, int from, int count) {
    int group = a->q_heads / a->kv_heads, dim = a->dim, rows = count * group;
    int end = c->start + from + count, num_keys = (end + KEYS - 1) & ~(KEYS - 1);
    int low = 0; /* keys before it are seen by no query of the tile */
    if (a->window && c->start + from + 1 > a->window) low = (c->start + from + 1 - a->window) & ~(KEYS - 1);
    size_t sizes[] = {(size_t)dim / 2 * 64,          (size_t)8 * (dim / 16) * 64,    (size_t)rows * num_keys * 4,
                      (size_t)rows * dim * 4,        (size_t)rows * num_keys * 2,    (size_t)rows * dim * 2,
                      (size_t)rows * sizeof(float)};
    size_t total = 0, offsets[7];
    for (int i = 0; i < 7; i++) {
        offsets[i] = total;
        total += (sizes[i] + 63) & ~(size_t)63;
    }
    char *memory = scratch_of(total);
    __m512i *keys = (__m512i *)(memory + offsets[0]), *values = (__m512i *)(memory + offsets[1]);
    float *scores = (float *)(memory + offsets[2]), *mixed = (float *)(memory + offsets[3]);
    bf16 *weights = (bf16 *)(memory + offsets[4]), *queries = (bf16 *)(memory + offsets[5]);
    float *totals = (float *)(memory + offsets[6]);

    size_t row_stride = (size_t)(a->q_heads + 2 * a->kv_heads) * dim, side = (size_t)a->kv_heads * a->num_blocks;
    for (int q = 0; q < count; q++)
        memcpy(queries + (size_t)q * group * dim,
               a->qkv + (c->first_row + from + q) * row_stride + (size_t)head * group * dim,
               (size_t)group * dim * sizeof(bf16));
    memset(mixed, 0, (size_t)rows * dim * sizeof(float));

#define BLOCK(k) a->blocks[c->table + (k) / a->block_tokens]
#define PLACE(k) (((size_t)head * a->num_blocks + BLOCK(k)) * a->block_tokens + (k) % a->block_tokens) * dim
    for (int k = low; k < num_keys; k += KEYS) {
        pack_keys(keys, a->kv + PLACE(k), dim);
        BY_ROWS(rows, score_rows(scores + (size_t)r * num_keys + k, num_keys, queries + (size_t)r * dim, keys, dim, n,
                                 a->scale))
    }
    for (int r = 0; r < rows; r++) {
        int high = c->start + from + r / group + 1;
        int first = a->window && high > a->window ? high - a->window : 0;
        totals[r] = soften(weights + (size_t)r * num_keys, scores + (size_t)r * num_keys, first, high, num_keys);
    }
    const bf16 *all_values = a->kv + side * a->block_tokens * dim;
    for (int k = low; k < num_keys; k += KEYS) {
        pack_values(values, all_values + PLACE(k), dim);
        for (int first = 0; first < dim; first += 64) {
            if (dim - first >= 64)
                BY_ROWS(rows, mix_rows(mixed + (size_t)r * dim, weights + (size_t)r * num_keys + k, num_keys, values, dim,
                                       first, 4, n))
            else
                BY_ROWS(rows, mix_rows(mixed + (size_t)r * dim, weights + (size_t)r * num_keys + k, num_keys, values, dim,
                                       first, 2, n))
        }
    }
    for (int r = 0; r < rows; r++) {
        bf16 *out = a->out + ((size_t)(c->first_row + from + r / group) * a->q_heads + head * group + r % group) * dim;
        __m512 share = _mm512_set1_ps(1.0f / totals[r]);
        for (int i = 0; i < dim; i += LANES)
            store(out + i, _mm512_mul_ps(_mm512_loadu_ps(mixed + (size_t)r * dim + i), share));
    }
}

/* Queries of a tile: as many as keep its scores in the cache. */
static int tile_queries(const Attention *a, const Chunk *c) {
    int per_query = (a->q_heads / a->kv_heads) * (c->start + c->num_queries + KEYS) * (int)sizeof(float);
    int count = SCORE_BYTES / per_query;
    return count < 1 ? 1 : count > 32 ? 32 : count;
}

/* Attention of all chunks of a step over the paged cache; out is [rows, q_heads · dim], window 0 is none. */
void headrace_attend(bf16 *out, const bf16 *qkv, const bf16 *kv, const int32_t *chunks, int num_chunks,
                     const int32_t *blocks, int q_heads, int kv_heads, int dim, int block_tokens, int64_t num_blocks,
                     int window, float scale, int threads) {
    Attention a = {out, qkv, kv, blocks, q_heads, kv_heads, dim, block_tokens, window, num_blocks, scale};
    const Chunk *all = (const Chunk *)chunks;
    int num_tasks = 0;
    for (int i = 0; i < num_chunks; i++) {
        int size = tile_queries(&a, all + i);
        num_tasks += kv_heads * ((all[i].num_queries + size - 1) / size);
    }
    struct {
        int chunk, head, from;
    } *tasks = malloc(sizeof(*tasks) * (size_t)num_tasks);
    if (!tasks) abort();
    int task = 0;
    for (int i = 0; i < num_chunks; i++) /* the last tiles see the most keys: they come first */
        for (int from = (all[i].num_queries - 1) / tile_queries(&a, all + i) * tile_queries(&a, all + i); from >= 0;
             from -= tile_queries(&a, all + i))
            for (int head = 0; head < kv_heads; head++, task++) {
                tasks[task].chunk = i;
                tasks[task].head = head;
                tasks[task].from = from;
            }
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < num_tasks; i++) {
        const Chunk *c = all + tasks[i].chunk;
        int size = tile_queries(&a, c), left = c->num_queries - tasks[i].from;
        attend_tile(&a, c, tasks[i].head, tasks[i].from, left < size ? left : size);
    }
    free(tasks);
}
