/* What each thread works in; grows as needed and is kept. */
#pragma once
#include <stdlib.h>

typedef struct {
    char *memory;
    size_t size;
} Scratch;
static _Thread_local Scratch scratch;

static char *scratch_of(size_t size) {
    if (scratch.size < size) {
        free(scratch.memory);
        scratch.size = (size + 4095) & ~(size_t)4095;
        scratch.memory = aligned_alloc(4096, scratch.size);
        if (!scratch.memory) abort();
    }
    return scratch.memory;
}
