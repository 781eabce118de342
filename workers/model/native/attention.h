/* Attention of a step's chunks over the paged cache, in tiles of queries of one KV head.
 *
 * The cache holds sixteens of tokens in the order in which they are multiplied: keys as [dim / 2][16 tokens][2],
 * so that one vector holds two elements of 16 keys, and values as [8 pairs of tokens][dim][2].
 * Keys are walked in order, sixteen at a time, whatever the tile; what a query does not see weighs exactly 0. */
#pragma once
#include "scratch.h"
#include "team.h"
#include "vector.h"

enum { KEYS = 16, TILE_SCORES = 4, SCORE_BYTES = 128 << 10, AHEAD = 4 /* sixteens */ };

/* Where a token's numbers lie in its sixteen's keys, and in its sixteen's values. */
INLINE void store_key(bf16 *sixteen, int token, const bf16 *key, int dim) {
    for (int i = 0; i < dim; i += 2) memcpy(sixteen + i * KEYS + 2 * token, key + i, 2 * sizeof(bf16));
}

INLINE void store_value(bf16 *sixteen, int token, const bf16 *value, int dim) {
    bf16 *first = sixteen + (token / 2) * 2 * dim + token % 2;
    for (int i = 0; i < dim; i++) first[2 * i] = value[i];
}

/* A sixteen that is needed soon: a sequence's blocks lie anywhere, so nothing else foresees them. */
INLINE void prefetch(const void *sixteen, int size) {
    for (int byte = 0; byte < size; byte += 64) _mm_prefetch((const char *)sixteen + byte, _MM_HINT_T0);
}

/* Scores of `count` query rows against `sixteens` (1 or 2) times 16 keys. */
INLINE void score_rows(float *scores, int score_stride, const bf16 *queries, const void *const *keys, int dim,
                       float scale, const int count, const int sixteens) {
    __m512 sums[TILE_SCORES][2];
    for (int r = 0; r < count; r++)
        for (int s = 0; s < sixteens; s++) sums[r][s] = _mm512_setzero_ps();
    for (int i = 0; i < dim; i += 2) {
        __m512bh key[2];
        for (int s = 0; s < sixteens; s++) key[s] = (__m512bh)_mm512_loadu_si512((const bf16 *)keys[s] + i * KEYS);
        for (int r = 0; r < count; r++) {
            __m512bh both = pair(queries + (size_t)r * dim + i);
            for (int s = 0; s < sixteens; s++) sums[r][s] = _mm512_dpbf16_ps(sums[r][s], key[s], both);
        }
    }
    for (int r = 0; r < count; r++)
        for (int s = 0; s < sixteens; s++)
            _mm512_storeu_ps(scores + (size_t)r * score_stride + s * KEYS,
                             _mm512_mul_ps(sums[r][s], _mm512_set1_ps(scale)));
}

/* What `count` rows take from the values of all sixteens, of `vectors` (4 or 2) times 16 elements from `first`
 * on. Of the last sixteen only `last` tokens are there: what lies in the others' places may be no number. */
INLINE void mix_rows(bf16 *const *out, const bf16 *weights, int weight_stride, const float *totals,
                     const void *const *values, int num_sixteens, int last, int dim, int first, const int vectors,
                     const int count) {
    __m512 sums[TILE_SCORES][4];
    for (int r = 0; r < count; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = _mm512_setzero_ps();
    for (int s = 0; s < num_sixteens; s++) {
        int present = s + 1 < num_sixteens ? KEYS : last;
        for (int token = 0; token < present; token += 2) {
            __mmask32 there = token + 1 < present ? 0xFFFFFFFF : 0x55555555;
            __m512bh value[4];
            for (int v = 0; v < vectors; v++)
                value[v] = (__m512bh)_mm512_maskz_loadu_epi16(
                    there, (const bf16 *)values[s] + token * dim + 2 * first + v * 32);
            for (int r = 0; r < count; r++) {
                __m512bh both = pair(weights + (size_t)r * weight_stride + s * KEYS + token);
                for (int v = 0; v < vectors; v++) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], value[v], both);
            }
        }
    }
    for (int r = 0; r < count; r++)
        for (int v = 0; v < vectors; v++)
            store(out[r] + first + v * LANES, _mm512_mul_ps(sums[r][v], _mm512_set1_ps(1.0f / totals[r])));
}

/* Call with a constant number of rows, so that the sums stay in registers. */
#define BY_ROWS(rows, call)                                                                                            \
    for (int r = 0; r < (rows); r += TILE_SCORES) {                                                                           \
        switch ((rows) - r) {                                                                                          \
        case 1: { enum { n = 1 }; call; break; }                                                                       \
        case 2: { enum { n = 2 }; call; break; }                                                                       \
        case 3: { enum { n = 3 }; call; break; }                                                                       \
        default: { enum { n = TILE_SCORES }; call; break; }                                                                   \
        }                                                                                                              \
    }

/* Those of the 16 keys from `k` on that lie in low .. high; low may be negative. */
INLINE __mmask16 seen_keys(int k, int low, int high) {
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i key = _mm512_add_epi32(lanes, _mm512_set1_epi32(k));
    return _mm512_cmplt_epi32_mask(key, _mm512_set1_epi32(high)) & _mm512_cmpge_epi32_mask(key, _mm512_set1_epi32(low));
}

INLINE float best_score(const float *scores, int low, int high) {
    __m512 best = _mm512_set1_ps(-3.4e38f);
    for (int k = low > 0 ? low & ~(KEYS - 1) : 0; k < high; k += KEYS)
        best = _mm512_mask_max_ps(best, seen_keys(k, low, high), best, _mm512_loadu_ps(scores + k));
    return _mm512_reduce_max_ps(best);
}

/* Weights of one row: softmax over the keys low .. high, 0 elsewhere; returns what to divide by. */
INLINE float soften(bf16 *weights, const float *scores, int low, int high, int num_keys) {
    __m512 best = _mm512_set1_ps(best_score(scores, low, high)), total = _mm512_setzero_ps();
    for (int k = 0; k < num_keys; k += KEYS) {
        __m512 weight = exp16(_mm512_sub_ps(_mm512_loadu_ps(scores + k), best));
        weight = _mm512_maskz_mov_ps(seen_keys(k, low, high), weight);
        total = _mm512_add_ps(total, weight);
        store(weights + k, weight);
    }
    return _mm512_reduce_add_ps(total);
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
    const bf16 *qkv;
    const char *kv; /* blocks of [2, kv_heads, block_tokens, dim] numbers, and what belongs to them */
    const Chunk *chunks;
    const int32_t *blocks;
    int q_heads, kv_heads, dim, block_tokens;
    int number_bytes, block_bytes; /* of the cache */
    int window;                    /* 0: every earlier token is seen */
    float scale;
} Attention;

/* Memory of one tile, in one piece. */
typedef struct {
    const void **keys, **values;
    float *scores, *totals;
    bf16 *weights, *queries, **out;
} Desk;

static Desk desk_of(int num_sixteens, int rows, int dim) {
    size_t keys = (size_t)num_sixteens * KEYS;
    size_t sizes[] = {num_sixteens * sizeof(void *), num_sixteens * sizeof(void *), rows * keys * sizeof(float),
                      rows * sizeof(float),          rows * keys * sizeof(bf16),    (size_t)rows * dim * sizeof(bf16),
                      rows * sizeof(bf16 *)};
    size_t total = 0, at[7];
    for (int i = 0; i < 7; i++) {
        at[i] = total;
        total += (sizes[i] + 63) & ~(size_t)63;
    }
    char *m = scratch_of(total);
    return (Desk){(const void **)(m + at[0]), (const void **)(m + at[1]), (float *)(m + at[2]), (float *)(m + at[3]),
                  (bf16 *)(m + at[4]),        (bf16 *)(m + at[5]),        (bf16 **)(m + at[6])};
}

/* Numbers in a block before those of a token of one head; side 0 is keys, 1 values. */
INLINE int64_t numbers_before(const Attention *a, int side, int head, int token) {
    return (int64_t)((side * a->kv_heads + head) * a->block_tokens + token) * a->dim;
}

INLINE const char *block_of(const Attention *a, const Chunk *c, int key) {
    return a->kv + (int64_t)a->blocks[c->table + key / a->block_tokens] * a->block_bytes;
}

/* The sixteen that begins with position `key` of the chunk's sequence. */
INLINE const void *sixteen_at(const Attention *a, const Chunk *c, int side, int head, int key) {
    return block_of(a, c, key) + numbers_before(a, side, head, key % a->block_tokens) * a->number_bytes;
}

/* Its tokens' scales, in a cache of 8-bit numbers: they follow the block's numbers, in the same order. */
INLINE const uint16_t *scales_at(const Attention *a, const Chunk *c, int side, int head, int key) {
    const char *scales = block_of(a, c, key) + numbers_before(a, 2, 0, 0);
    return (const uint16_t *)scales + numbers_before(a, side, head, key % a->block_tokens) / a->dim;
}

/* First position that a query of the tile may see, and the first past all of them. */
INLINE int tile_end(const Chunk *c, const Tile *tile) { return c->start + tile->from + tile->count; }

INLINE int tile_low(const Attention *a, const Chunk *c, const Tile *tile) {
    int seen = c->start + tile->from + 1 - a->window;
    return a->window && seen > 0 ? seen & ~(KEYS - 1) : 0;
}

/* The first keys of a tile that is computed soon. */
static void foresee_tile(const Attention *a, const Tile *tile) {
    const Chunk *c = a->chunks + tile->chunk;
    int low = tile_low(a, c, tile), end = tile_end(c, tile);
    for (int key = low; key < low + AHEAD * KEYS && key < end; key += KEYS)
        prefetch(sixteen_at(a, c, 0, tile->head, key), KEYS * a->dim * a->number_bytes);
}

/* Some queries of a chunk, all query heads of one KV head. */
static void attend_tile(const Attention *a, const Tile *tile) {
    const Chunk *c = a->chunks + tile->chunk;
    int head = tile->head, from = tile->from, dim = a->dim, group = a->q_heads / a->kv_heads;
    int rows = tile->count * group, first_query = c->start + from, end = tile_end(c, tile), low = tile_low(a, c, tile);
    int num_sixteens = (end - low + KEYS - 1) / KEYS, num_keys = num_sixteens * KEYS;
    Desk desk = desk_of(num_sixteens, rows, dim);

    for (int s = 0; s < num_sixteens; s++) {
        desk.keys[s] = sixteen_at(a, c, 0, head, low + s * KEYS);
        desk.values[s] = sixteen_at(a, c, 1, head, low + s * KEYS);
    }
    size_t row_size = (size_t)(a->q_heads + 2 * a->kv_heads) * dim;
    for (int r = 0; r < rows; r++) {
        const bf16 *row = a->qkv + (c->first_row + from + r / group) * row_size;
        memcpy(desk.queries + (size_t)r * dim, row + (head * group + r % group) * dim, dim * sizeof(bf16));
        desk.out[r] = a->out + ((size_t)(c->first_out + from + r / group) * a->q_heads + head * group + r % group) * dim;
    }

    for (int s = 0; s < num_sixteens; s += 2) {
        int both = s + 1 < num_sixteens;
        for (int next = s; next < s + 2 && next < num_sixteens; next++) {
            if (next + AHEAD < num_sixteens) prefetch(desk.keys[next + AHEAD], KEYS * dim * (int)sizeof(bf16));
            prefetch(desk.values[next], KEYS * dim * (int)sizeof(bf16));
        }
        float *scores = desk.scores + s * KEYS;
        if (both)
            BY_ROWS(rows, score_rows(scores + (size_t)r * num_keys, num_keys, desk.queries + (size_t)r * dim,
                                     desk.keys + s, dim, a->scale, n, 2))
        else
            BY_ROWS(rows, score_rows(scores + (size_t)r * num_keys, num_keys, desk.queries + (size_t)r * dim,
                                     desk.keys + s, dim, a->scale, n, 1))
    }
    for (int r = 0; r < rows; r++) {
        int high = first_query + r / group + 1, first = a->window && high > a->window ? high - a->window : 0;
        desk.totals[r] = soften(desk.weights + (size_t)r * num_keys, desk.scores + (size_t)r * num_keys, first - low,
                                high - low, num_keys);
    }
    int last = end - low - (num_sixteens - 1) * KEYS;
    for (int first = 0; first < dim; first += 64) {
        if (dim - first >= 64)
            BY_ROWS(rows, mix_rows(desk.out + r, desk.weights + (size_t)r * num_keys, num_keys, desk.totals + r,
                                   desk.values, num_sixteens, last, dim, first, 4, n))
        else
            BY_ROWS(rows, mix_rows(desk.out + r, desk.weights + (size_t)r * num_keys, num_keys, desk.totals + r,
                                   desk.values, num_sixteens, last, dim, first, 2, n))
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
