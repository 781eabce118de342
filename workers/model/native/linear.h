/* A linear layer's share of a thread, whatever the format of its weights. */
#pragma once
#include "bf16.h"
#include "grouped.h"
#include "team.h"

static void multiply_rows(const Linear *l, int row, int panel, int count) {
    switch (l->format) {
    case BF16: multiply_bf16(l, row, panel, count); break;
    case INT8: multiply_int8(l, row, panel, count); break;
    case INT4: multiply_int4(l, row, panel, count); break;
    case INT4_LEAST: multiply_int4_least(l, row, panel, count); break;
    }
}

/* A task is one panel with all rows: the panel stays in the cache while the rows pass. */
static void multiply(const Linear *l, int rows, const Share *share) {
    int per_panel = l->form == TO_GATED ? LANES : PANEL;
    int num_panels = (l->outputs + per_panel - 1) / per_panel;
    int tile_rows = l->format == BF16 ? TILE_ROWS : GROUP_ROWS;
    int num_tiles = (rows + tile_rows - 1) / tile_rows;
    FOR_TASKS(panel, share, num_panels)
        for (int tile = 0, row = 0; tile < num_tiles; tile++) {
            int count = (rows - row) / (num_tiles - tile); /* tiles of nearly equal size */
            multiply_rows(l, row, panel, count);
            row += count;
        }
}
