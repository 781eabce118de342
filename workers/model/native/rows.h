/* What is done to each row by itself: embedding, norms, rotation. */
#pragma once
#include "vector.h"

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

/* residual += x; out = rms_norm(residual) */
INLINE void add_norm_row(bf16 *out, bf16 *residual, const bf16 *x, const bf16 *weight, int size, float eps) {
    for (int i = 0; i < size; i += LANES)
        store(residual + i, _mm512_add_ps(load(residual + i), load(x + i)));
    norm_row(out, residual, weight, size, eps);
}

INLINE void add_row(bf16 *residual, const bf16 *x, int size) {
    for (int i = 0; i < size; i += LANES) store(residual + i, _mm512_add_ps(load(residual + i), load(x + i)));
}

INLINE void widen_row(float *out, const bf16 *x, int size, float scale) {
    for (int i = 0; i < size; i += LANES)
        _mm512_storeu_ps(out + i, _mm512_mul_ps(load(x + i), _mm512_set1_ps(scale)));
}

INLINE void scale_row(bf16 *out, const bf16 *x, int size, float scale) {
    for (int i = 0; i < size; i += LANES) store(out + i, _mm512_mul_ps(load(x + i), _mm512_set1_ps(scale)));
}

/* Turn the first `pairs` pairs of each head; `turn` holds (cos, sin) of each pair at the row's position. */
INLINE void rotate_row(bf16 *row, const float *turn, int heads, int dim, int pairs) {
    for (int h = 0; h < heads; h++)
        for (int p = 0; p < 2 * pairs; p += LANES) { /* 8 pairs: x (c, c) + swapped x (-s, s) */
            __m512 x = load(row + h * dim + p), cs = _mm512_loadu_ps(turn + p);
            __m512 turned = _mm512_mul_ps(_mm512_permute_ps(x, 0xB1), _mm512_movehdup_ps(cs));
            store(row + h * dim + p, _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(cs), turned));
        }
}
