/* Attention of a step's chunks over the paged cache, in tiles of queries of one KV head.
 *
 * Keys are walked in order, sixteen at a time, whatever the tile; what a query does not see weighs exactly 0. */
#pragma once
#include <stdlib.h>

#include "team.h"
#include "vector.h"

enum { KEYS = 16, SCORED_ROWS = 4, SCORE_BYTES = 128 << 10 };

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
    for (int k = 0; k < 8; k++)
        for (int first = 0; first < dim; first += 32) {
            __m512i even = _mm512_loadu_si512(values + (size_t)2 * k * dim + first);
            __m512i odd = _mm512_loadu_si512(values + (size_t)(2 * k + 1) * dim + first);
            packed[k * (dim / 16) + first / 16] = _mm512_permutex2var_epi16(even, low, odd);
            packed[k * (dim / 16) + first / 16 + 1] = _mm512_permutex2var_epi16(even, high, odd);
        }
}

/* Scores of `count` query rows against 16 packed keys. */
INLINE void score_rows(float *scores, int score_stride, const bf16 *queries, const __m512i *keys, int dim, int count,
                       float scale) {
    __m512 sums[SCORED_ROWS];
    for (int r = 0; r < count; r++) sums[r] = _mm512_setzero_ps();
    for (int i = 0; i < dim / 2; i++)
        for (int r = 0; r < count; r++) {
            __m512bh both = pair(queries + (size_t)r * dim + 2 * i);
            sums[r] = _mm512_dpbf16_ps(sums[r], (__m512bh)keys[i], both);
        }
    for (int r = 0; r < count; r++)
        _mm512_storeu_ps(scores + (size_t)r * score_stride, _mm512_mul_ps(sums[r], _mm512_set1_ps(scale)));
}

/* mixed += weights of 16 keys times their packed values, for `count` rows and 64 or 32 elements from `first` on. */
INLINE void mix_rows(float *mixed, const bf16 *weights, int weight_stride, const __m512i *values, int dim, int first,
                     int vectors, int count) {
    __m512 sums[SCORED_ROWS][4];
    for (int r = 0; r < count; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = _mm512_loadu_ps(mixed + (size_t)r * dim + first + v * LANES);
    for (int k = 0; k < 8; k++)
        for (int r = 0; r < count; r++) {
            __m512bh both = pair(weights + (size_t)r * weight_stride + 2 * k);
            for (int v = 0; v < vectors; v++)
                sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)values[k * (dim / 16) + first / 16 + v], both);
        }
    for (int r = 0; r < count; r++)
        for (int v = 0; v < vectors; v++) _mm512_storeu_ps(mixed + (size_t)r * dim + first + v * LANES, sums[r][v]);
}

/* Call with a constant number of rows, so that the sums stay in registers. */
#define BY_ROWS(rows, call)                                                                                            \
    for (int r = 0; r < (rows); r += SCORED_ROWS) {                                                                           \
        switch ((rows) - r) {                                                                                          \
        case 1: { enum { n = 1 }; call; break; }                                                                       \
        case 2: { enum { n = 2 }; call; break; }                                                                       \
        case 3: { enum { n = 3 }; call; break; }                                                                       \
        default: { enum { n = SCORED_ROWS }; call; break; }                                                                   \
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

/* Consecutive tokens of one sequence. `table`: where its blocks begin in the list of all blocks. */
typedef struct {
    int32_t first_row, num_queries, start, table, first_out;
} Chunk;

typedef struct {
    int chunk, head, from, count;
} Tile;

typedef struct {
    bf16 *out;
    const bf16 *qkv, *kv; /* kv is [2, kv_heads, num_blocks, block_tokens, dim] */
    const Chunk *chunks;
    const int32_t *blocks;
    int q_heads, kv_heads, dim, block_tokens, window; /* window 0: every earlier token is seen */
    int64_t num_blocks;
    float scale;
} Attention;

/* Some queries of a chunk, all query heads of one KV head. */
static void attend_tile(const Attention *a, const Tile *tile) {
    const Chunk *c = a->chunks + tile->chunk;
    int head = tile->head, from = tile->from, count = tile->count;
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
        bf16 *out = a->out + ((size_t)(c->first_out + from + r / group) * a->q_heads + head * group + r % group) * dim;
        __m512 share = _mm512_set1_ps(1.0f / totals[r]);
        for (int i = 0; i < dim; i += LANES)
            store(out + i, _mm512_mul_ps(_mm512_loadu_ps(mixed + (size_t)r * dim + i), share));
    }
}

/* Queries of a tile: as many as keep its scores in the cache. */
static int tile_queries(const Chunk *c, int group) {
    int count = SCORE_BYTES / (group * (c->start + c->num_queries + KEYS) * (int)sizeof(float));
    return count < 1 ? 1 : count > 32 ? 32 : count;
}

/* The tiles of all chunks, into `tiles` unless that is NULL; returns how many there are. */
static int cut(const Chunk *chunks, int num_chunks, int q_heads, int kv_heads, Tile *tiles) {
    int num_tiles = 0;
    for (int i = 0; i < num_chunks; i++) {
        int size = tile_queries(chunks + i, q_heads / kv_heads), all = chunks[i].num_queries;
        for (int from = (all - 1) / size * size; from >= 0; from -= size) /* the last see the most keys: first */
            for (int head = 0; head < kv_heads; head++, num_tiles++)
                if (tiles) tiles[num_tiles] = (Tile){i, head, from, all - from < size ? all - from : size};
    }
    return num_tiles;
}
