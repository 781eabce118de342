/* Matrix products with weights of 8 or 4 bits in groups of 32 inputs, and inputs of 8 bits.
 *
 * A weight is scale * (q - zero), or scale * q + least where a group has that; scale and least are fp16, q is
 * unsigned, zero is 128 or 8. Panels are of 32 outputs; a panel's group is one record: the scales, the leasts
 * if there are, then q as [8][2][16][4], so that a vector holds four neighbouring inputs' weights of 16
 * outputs. Of 4 bits, a byte holds q of input i in its low and of input i + 16 in its high half.
 * Sums within a group are exact; those of groups are one chain in order for every output. */
#pragma once
#include "sums.h"

enum { GROUP = 32, GROUP_ROWS = 6 }; /* 12 sums and 16 vectors of weights stay in registers */

/* A row of inputs: the numbers, then each group's scale, then each group's sum of numbers. */
INLINE size_t quantised_size(int inputs) {
    return ((size_t)inputs + inputs / GROUP * (sizeof(float) + sizeof(int32_t)) + 63) & ~(size_t)63;
}

INLINE void quantise_row(int8_t *out, const bf16 *in, int inputs) {
    float *scales = (float *)(out + inputs);
    int32_t *sums = (int32_t *)(scales + inputs / GROUP);
    for (int g = 0; g < inputs / GROUP; g++) {
        __m512 low = load(in + g * GROUP), high = load(in + g * GROUP + LANES);
        float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
        __m512 inverse = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
        __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse)), b = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
        _mm_storeu_si128((__m128i *)(out + g * GROUP), _mm512_cvtsepi32_epi8(a));
        _mm_storeu_si128((__m128i *)(out + g * GROUP + LANES), _mm512_cvtsepi32_epi8(b));
        scales[g] = most / 127.0f;
        sums[g] = _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
    }
}

typedef struct {
    int bits, has_least;
} Grouping;

INLINE size_t record_size(Grouping f) { return (f.has_least ? 128 : 64) + (size_t)GROUP * PANEL * f.bits / 8; }

INLINE __m512 halves(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }

/* `count`, and the format's fields, are constants. */
INLINE void grouped_tile(const Linear *l, int row, int panel, const Grouping f, const int count) {
    int groups = l->inputs / GROUP, zero = f.bits == 8 ? 128 : 8;
    size_t stride = quantised_size(l->inputs), record = record_size(f);
    const uint8_t *weight = (const uint8_t *)l->weight + (size_t)panel * groups * record;
    const int8_t *in = (const int8_t *)l->in + row * stride;
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512 sums[GROUP_ROWS][2];
    for (int r = 0; r < count; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    for (int g = 0; g < groups; g++, weight += record) {
        const __m512i *data = (const __m512i *)(weight + (f.has_least ? 128 : 64));
        const int8_t *numbers = in + g * GROUP;
        __m512i dots[GROUP_ROWS][2];
        for (int r = 0; r < count; r++) {
            const int32_t *of_row = (const int32_t *)(in + r * stride + l->inputs) + groups;
            dots[r][0] = dots[r][1] = f.has_least ? _mm512_setzero_si512() : _mm512_set1_epi32(of_row[g] * -zero);
        }
        for (int i = 0; i < 8; i++) {
            __m512i low, high;
            if (f.bits == 8) {
                low = _mm512_loadu_si512(data + 2 * i), high = _mm512_loadu_si512(data + 2 * i + 1);
            } else {
                low = _mm512_loadu_si512(data + 2 * (i % 4)), high = _mm512_loadu_si512(data + 2 * (i % 4) + 1);
                if (i >= 4) low = _mm512_srli_epi16(low, 4), high = _mm512_srli_epi16(high, 4);
                low = _mm512_and_si512(low, nibble), high = _mm512_and_si512(high, nibble);
            }
            for (int r = 0; r < count; r++) {
                int32_t four;
                memcpy(&four, numbers + r * stride + 4 * i, sizeof four);
                __m512i all = _mm512_set1_epi32(four);
                dots[r][0] = _mm512_dpbusd_epi32(dots[r][0], low, all);
                dots[r][1] = _mm512_dpbusd_epi32(dots[r][1], high, all);
            }
        }
        __m512 scales[2] = {halves(weight), halves(weight + 32)};
        for (int r = 0; r < count; r++) {
            __m512 scale = _mm512_set1_ps(((const float *)(in + r * stride + l->inputs))[g]);
            for (int v = 0; v < 2; v++)
                sums[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][v]), _mm512_mul_ps(scales[v], scale), sums[r][v]);
        }
        if (f.has_least) {
            __m512 leasts[2] = {halves(weight + 64), halves(weight + 96)};
            for (int r = 0; r < count; r++) {
                const float *of_row = (const float *)(in + r * stride + l->inputs);
                __m512 sum = _mm512_set1_ps(of_row[g] * (float)((const int32_t *)of_row)[groups + g]);
                for (int v = 0; v < 2; v++) sums[r][v] = _mm512_fmadd_ps(leasts[v], sum, sums[r][v]);
            }
        }
    }
    for (int r = 0; r < count; r++) finish_row(l, sums[r][0], sums[r][1], row + r, panel);
}

#define BY_COUNT(name, bits, has_least)                                                                                \
    static void name(const Linear *l, int row, int panel, int count) {                                                 \
        const Grouping f = {bits, has_least};                                                                          \
        switch (count) {                                                                                               \
        case 1: grouped_tile(l, row, panel, f, 1); break;                                                              \
        case 2: grouped_tile(l, row, panel, f, 2); break;                                                              \
        case 3: grouped_tile(l, row, panel, f, 3); break;                                                              \
        case 4: grouped_tile(l, row, panel, f, 4); break;                                                              \
        case 5: grouped_tile(l, row, panel, f, 5); break;                                                              \
        case 6: grouped_tile(l, row, panel, f, 6); break;                                                              \
        }                                                                                                              \
    }
BY_COUNT(multiply_int8, 8, 0)
BY_COUNT(multiply_int4, 4, 0)
BY_COUNT(multiply_int4_least, 4, 1)
#undef BY_COUNT
