/* What a linear layer is, and what becomes of its sums. Weights stand in panels of 32 outputs. */
#pragma once
#include "vector.h"

enum { PANEL = 32 };
enum { TO_BF16, TO_GATED, TO_FP32 };
enum { BF16, INT8, INT4, INT4_LEAST };

typedef struct {
    void *out;
    const void *in, *weight;
    const bf16 *bias;               /* in the order of the panels, or NULL */
    int inputs, outputs;            /* outputs: numbers in a row of `out` */
    int format;                     /* of the weights */
    int form, activation;           /* TO_GATED: the panel's first 16 are gates, the others what they gate */
} Linear;

INLINE void finish_row(const Linear *l, __m512 low, __m512 high, int row, int panel) {
    if (l->bias) {
        low = _mm512_add_ps(low, load(l->bias + panel * PANEL));
        high = _mm512_add_ps(high, load(l->bias + panel * PANEL + LANES));
    }
    if (l->form == TO_GATED) {
        store((bf16 *)l->out + (size_t)row * l->outputs + panel * LANES,
              _mm512_mul_ps(activate(low, l->activation), high));
        return;
    }
    int first = panel * PANEL, left = l->outputs - first;
    __mmask16 low_mask = left >= 16 ? 0xFFFF : (1 << left) - 1;
    __mmask16 high_mask = left >= 32 ? 0xFFFF : left > 16 ? (1 << (left - 16)) - 1 : 0;
    if (l->form == TO_FP32) {
        float *out = (float *)l->out + (size_t)row * l->outputs + first;
        _mm512_mask_storeu_ps(out, low_mask, low);
        _mm512_mask_storeu_ps(out + LANES, high_mask, high);
    } else {
        bf16 *out = (bf16 *)l->out + (size_t)row * l->outputs + first;
        _mm256_mask_storeu_epi16(out, low_mask, (__m256i)_mm512_cvtneps_pbh(low));
        _mm256_mask_storeu_epi16(out + LANES, high_mask, (__m256i)_mm512_cvtneps_pbh(high));
    }
}
