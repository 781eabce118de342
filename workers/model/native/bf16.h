/* Matrix products in bf16. A panel is [inputs / 2][2][16][2], so that one vector holds two neighbouring inputs'
 * weights of 16 outputs. Every output of a row is one chain of sums over the inputs in order, whatever other
 * rows are computed beside it. */
#pragma once
#include "sums.h"

enum { TILE_ROWS = 12 }; /* 24 sums, 2 weights and an input: 27 of the 32 registers */

/* `count` is a constant, so that the sums stay in registers. */
INLINE void bf16_tile(const Linear *l, int row, int panel, const int count) {
    __m512 sums[TILE_ROWS][2];
    for (int r = 0; r < count; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    const bf16 *in = (const bf16 *)l->in + (size_t)row * l->inputs;
    const __m512i *weight = (const __m512i *)((const bf16 *)l->weight + (size_t)panel * PANEL * l->inputs);
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

static void multiply_bf16(const Linear *l, int row, int panel, int count) {
    switch (count) {
#define CASE(n) case n: bf16_tile(l, row, panel, n); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
    }
}
