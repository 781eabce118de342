/* Sixteen numbers at a time: bf16 in memory, fp32 in registers. */
#pragma once
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;
#define INLINE static inline __attribute__((always_inline))

enum { LANES = 16 };
enum { SILU = 0, GELU_TANH = 1 };

INLINE __m512 load(const bf16 *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

INLINE void store(bf16 *p, __m512 v) { _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(v)); }

/* Two neighbouring bf16 in every lane. */
INLINE __m512bh pair(const bf16 *p) {
    int32_t both;
    memcpy(&both, p, sizeof both);
    return (__m512bh)_mm512_set1_epi32(both);
}

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

/* SiLU, or GELU by tanh: both are g / (1 + e^-z), with z = g for SiLU. */
INLINE __m512 activate(__m512 g, int activation) {
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 z = g;
    if (activation == GELU_TANH) { /* 0.5 (1 + tanh y) = 1 / (1 + e^-2y) */
        __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(g, g), _mm512_set1_ps(0.044715f), one);
        z = _mm512_mul_ps(_mm512_mul_ps(g, cubic), _mm512_set1_ps(1.5957691216f));
    }
    z = _mm512_min_ps(_mm512_sub_ps(_mm512_setzero_ps(), z), _mm512_set1_ps(80.0f));
    return _mm512_div_ps(g, _mm512_add_ps(one, exp16(z)));
}
