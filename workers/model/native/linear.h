/* Matrix products with weights in panels of 32 outputs: [inputs / 2][2][16][2], so that one vector holds two
 * neighbouring inputs' weights of 16 outputs. Every output of a row is one chain of sums over the inputs in
 * order, whatever other rows are computed beside it. */
#pragma once
#include "team.h"
#include "vector.h"

enum { PANEL = 32, TILE_ROWS = 12 }; /* 24 sums, 2 weights and an input: 27 of the 32 registers */
enum { TO_BF16, TO_GATED, TO_FP32 };

typedef struct {
    void *out;
    const bf16 *in, *weight, *bias; /* bias may be NULL; it is in the order of the panels */
    int inputs, outputs;            /* outputs: numbers in a row of `out` */
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

/* `count` is a constant, so that the sums stay in registers. */
INLINE void multiply_tile(const Linear *l, int row, int panel, const int count) {
    __m512 sums[TILE_ROWS][2];
    for (int r = 0; r < count; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    const bf16 *in = l->in + (size_t)row * l->inputs;
    const __m512i *weight = (const __m512i *)(l->weight + (size_t)panel * PANEL * l->inputs);
    for (int i = 0; i < l->inputs / 2; i++) {
        __m512bh low = (__m512bh)weight[2 * i], high = (__m512bh)weight[2 * i + 1];
        for (int r = 0; r < count; r++) {
            __m512bh both = pair(in + (size_t)r * l->inputs + 2 * i);
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], low, both);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], high, both);
        }
    }
    for (int r = 0; r < count; r++) finish_row(l, sums[r][0], sums[r][1], row + r, panel);
}

static void multiply_rows(const Linear *l, int row, int panel, int count) {
    switch (count) {
#define CASE(n) case n: multiply_tile(l, row, panel, n); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
    }
}

/* A task is one panel with all rows: the panel stays in the cache while the rows pass. */
static void multiply(const Linear *l, int rows, atomic_int *counter) {
    int per_panel = l->form == TO_GATED ? LANES : PANEL;
    int num_panels = (l->outputs + per_panel - 1) / per_panel, num_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    FOR_TASKS(panel, counter, num_panels)
        for (int tile = 0, row = 0; tile < num_tiles; tile++) {
            int count = (rows - row) / (num_tiles - tile); /* tiles of nearly equal size */
            multiply_rows(l, row, panel, count);
            row += count;
        }
}
