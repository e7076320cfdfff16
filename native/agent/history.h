/* The last bytes that a kept process printed, in the order in which they came, for whoever attaches later. */
#ifndef AGENTENV_HISTORY_H
#define AGENTENV_HISTORY_H

#include "stream.h"

enum { HISTORY_LIMIT = 65536, HISTORY_MEMORY = 4 * HISTORY_LIMIT };

struct history_chunk {
    struct history_chunk *next;
    enum frame_kind kind;
    size_t start, size, capacity;
    uint8_t bytes[];
};

struct history {
    struct history_chunk *first, *last;
    size_t total;     /* bytes kept */
    size_t allocated; /* bytes that they take; more when they came in many small pieces */
};

void history_add(struct history *history, enum frame_kind kind, const uint8_t *bytes, size_t size);
void history_replay(const struct history *history, struct stream *stream);
void history_free(struct history *history);

#endif
