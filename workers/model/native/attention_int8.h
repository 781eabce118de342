/* Attention over a cache of 8-bit numbers with a scale for each token of each head.
 *
 * A sixteen's keys are [dim / 4][16 tokens][4], unsigned with 128 added; its values are [4][dim][4 tokens], signed.
 * The block's scales, fp16, follow all of its numbers. Queries and the weights of values are rounded to 8 bits as
 * well, each row by itself; sums are exact, so no row depends on what stands beside it. */
#pragma once
#include "attention.h"

enum { KEY_ZERO = 128, LARGEST = 127, LARGEST_WEIGHT = 255 };

INLINE float half_to_float(uint16_t half) { return _cvtsh_ss(half); }

/* `x` in 8 bits with its sign; returns the scale, as it is stored. */
INLINE uint16_t round_to_int8(int8_t *out, const bf16 *x, int dim) {
    __m512 most = _mm512_setzero_ps();
    for (int i = 0; i < dim; i += LANES) most = _mm512_max_ps(most, _mm512_abs_ps(load(x + i)));
    uint16_t half = _cvtss_sh(_mm512_reduce_max_ps(most) / LARGEST, _MM_FROUND_TO_NEAREST_INT);
    float scale = half_to_float(half);
    __m512 inverse = _mm512_set1_ps(scale > 0 ? 1.0f / scale : 0.0f);
    for (int i = 0; i < dim; i += LANES) {
        __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(load(x + i), inverse));
        q = _mm512_max_epi32(_mm512_min_epi32(q, _mm512_set1_epi32(LARGEST)), _mm512_set1_epi32(-LARGEST));
        _mm_storeu_si128((__m128i *)(out + i), _mm512_cvtepi32_epi8(q));
    }
    return half;
}

/* Put a token's key and value into their places, and what they are to be multiplied with. */
INLINE void store_int8(char *keys, char *values, uint16_t *key_scale, uint16_t *value_scale, int token, const bf16 *key,
                       const bf16 *value, int dim) {
    int8_t q[dim];
    *key_scale = round_to_int8(q, key, dim);
    for (int i = 0; i < dim; i++) keys[(i / 4) * 4 * KEYS + 4 * token + i % 4] = (char)(q[i] + KEY_ZERO);
    *value_scale = round_to_int8(q, value, dim);
    for (int i = 0; i < dim; i++) values[((token / 4) * dim + i) * 4 + token % 4] = q[i];
}

INLINE void score_int8_rows(float *scores, int score_stride, const int8_t *queries, const float *query_scales,
                            const int32_t *query_sums, const void *const *keys, const uint16_t *const *key_scales,
                            int dim, const int count, const int sixteens) {
    __m512i sums[TILE_SCORES][2];
    for (int r = 0; r < count; r++)
        for (int s = 0; s < sixteens; s++) sums[r][s] = _mm512_set1_epi32(-KEY_ZERO * query_sums[r]);
    for (int i = 0; i < dim; i += 4) {
        __m512i key[2];
        for (int s = 0; s < sixteens; s++) key[s] = _mm512_loadu_si512((const char *)keys[s] + i * KEYS);
        for (int r = 0; r < count; r++) {
            int32_t four;
            memcpy(&four, queries + (size_t)r * dim + i, sizeof four);
            for (int s = 0; s < sixteens; s++)
                sums[r][s] = _mm512_dpbusd_epi32(sums[r][s], key[s], _mm512_set1_epi32(four));
        }
    }
    for (int s = 0; s < sixteens; s++) {
        __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)key_scales[s]));
        for (int r = 0; r < count; r++)
            _mm512_storeu_ps(scores + (size_t)r * score_stride + s * KEYS,
                             _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][s]),
                                           _mm512_mul_ps(scale, _mm512_set1_ps(query_scales[r]))));
    }
}

/* Weights of one row with the values' scales in them, 0 for keys outside low .. high; returns what the sums of
 * weights and values are to be multiplied with. `scores` is overwritten. */
INLINE float soften_int8(uint8_t *weights, float *scores, const uint16_t *const *value_scales, int low, int high,
                         int num_keys) {
    __m512 best = _mm512_set1_ps(best_score(scores, low, high)), total = _mm512_setzero_ps(), most = total;
    for (int k = 0; k < num_keys; k += KEYS) {
        __mmask16 seen = seen_keys(k, low, high);
        __m512 weight = _mm512_maskz_mov_ps(seen, exp16(_mm512_sub_ps(_mm512_loadu_ps(scores + k), best)));
        __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)value_scales[k / KEYS]));
        total = _mm512_add_ps(total, weight);
        weight = _mm512_maskz_mul_ps(seen, weight, scale);
        most = _mm512_max_ps(most, weight);
        _mm512_storeu_ps(scores + k, weight);
    }
    float largest = _mm512_reduce_max_ps(most);
    __m512 inverse = _mm512_set1_ps(largest > 0 ? LARGEST_WEIGHT / largest : 0.0f);
    for (int k = 0; k < num_keys; k += KEYS)
        _mm_storeu_si128((__m128i *)(weights + k), _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(
                                                       _mm512_mul_ps(_mm512_loadu_ps(scores + k), inverse))));
    return largest / LARGEST_WEIGHT / _mm512_reduce_add_ps(total);
}

INLINE void mix_int8_rows(bf16 *const *out, const uint8_t *weights, int weight_stride, const float *shares,
                          const void *const *values, int num_sixteens, int dim, int first, const int vectors,
                          const int count) {
    __m512i sums[TILE_SCORES][4];
    for (int r = 0; r < count; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = _mm512_setzero_si512();
    for (int s = 0; s < num_sixteens; s++)
        for (int token = 0; token < KEYS; token += 4) {
            __m512i value[4];
            for (int v = 0; v < vectors; v++)
                value[v] = _mm512_loadu_si512((const char *)values[s] + token * dim + 4 * (first + v * LANES));
            for (int r = 0; r < count; r++) {
                int32_t four;
                memcpy(&four, weights + (size_t)r * weight_stride + s * KEYS + token, sizeof four);
                for (int v = 0; v < vectors; v++)
                    sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], _mm512_set1_epi32(four), value[v]);
            }
        }
    for (int r = 0; r < count; r++)
        for (int v = 0; v < vectors; v++)
            store(out[r] + first + v * LANES,
                  _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][v]), _mm512_set1_ps(shares[r])));
}

/* Some queries of a chunk, all query heads of one KV head. */
static void attend_int8_tile(const Attention *a, const Tile *tile) {
    const Chunk *c = a->chunks + tile->chunk;
    int head = tile->head, from = tile->from, dim = a->dim, group = a->q_heads / a->kv_heads;
    int rows = tile->count * group, first_query = c->start + from, end = tile_end(c, tile), low = tile_low(a, c, tile);
    int num_sixteens = (end - low + KEYS - 1) / KEYS, num_keys = num_sixteens * KEYS;

    const void *keys[num_sixteens], *values[num_sixteens];
    const uint16_t *key_scales[num_sixteens], *value_scales[num_sixteens];
    for (int s = 0; s < num_sixteens; s++) {
        keys[s] = sixteen_at(a, c, 0, head, low + s * KEYS);
        values[s] = sixteen_at(a, c, 1, head, low + s * KEYS);
        key_scales[s] = scales_at(a, c, 0, head, low + s * KEYS);
        value_scales[s] = scales_at(a, c, 1, head, low + s * KEYS);
    }
    size_t score_bytes = (size_t)rows * num_keys * sizeof(float), weight_bytes = (size_t)rows * num_keys;
    char *memory = scratch_of(score_bytes + weight_bytes + (size_t)rows * dim);
    float *scores = (float *)memory, query_scales[rows], shares[rows];
    uint8_t *weights = (uint8_t *)memory + score_bytes;
    int8_t *queries = (int8_t *)weights + weight_bytes;
    int32_t query_sums[rows];
    bf16 *out[rows];
    size_t row_size = (size_t)(a->q_heads + 2 * a->kv_heads) * dim;
    for (int r = 0; r < rows; r++) {
        const bf16 *row = a->qkv + (c->first_row + from + r / group) * row_size;
        int8_t *query = queries + (size_t)r * dim;
        query_scales[r] = a->scale * half_to_float(round_to_int8(query, row + (head * group + r % group) * dim, dim));
        query_sums[r] = 0;
        for (int i = 0; i < dim; i++) query_sums[r] += query[i];
        out[r] = a->out + ((size_t)(c->first_out + from + r / group) * a->q_heads + head * group + r % group) * dim;
    }

    for (int s = 0; s < num_sixteens; s += 2) {
        for (int next = s; next < s + 2 && next < num_sixteens; next++) {
            if (next + AHEAD < num_sixteens) prefetch(keys[next + AHEAD], KEYS * dim);
            prefetch(values[next], KEYS * dim);
        }
        if (s + 1 < num_sixteens)
            BY_ROWS(rows, score_int8_rows(scores + s * KEYS + (size_t)r * num_keys, num_keys, queries + (size_t)r * dim,
                                          query_scales + r, query_sums + r, keys + s, key_scales + s, dim, n, 2))
        else
            BY_ROWS(rows, score_int8_rows(scores + s * KEYS + (size_t)r * num_keys, num_keys, queries + (size_t)r * dim,
                                          query_scales + r, query_sums + r, keys + s, key_scales + s, dim, n, 1))
    }
    for (int r = 0; r < rows; r++) {
        int high = first_query + r / group + 1, first = a->window && high > a->window ? high - a->window : 0;
        shares[r] = soften_int8(weights + (size_t)r * num_keys, scores + (size_t)r * num_keys, value_scales, first - low,
                                high - low, num_keys);
    }
    for (int first = 0; first < dim; first += 64) {
        if (dim - first >= 64)
            BY_ROWS(rows, mix_int8_rows(out + r, weights + (size_t)r * num_keys, num_keys, shares + r, values,
                                        num_sixteens, dim, first, 4, n))
        else
            BY_ROWS(rows, mix_int8_rows(out + r, weights + (size_t)r * num_keys, num_keys, shares + r, values,
                                        num_sixteens, dim, first, 2, n))
    }
}
