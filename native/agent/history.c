#include "history.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_LEAST = 1024 };

static void forget_first(struct history *history) {
    struct history_chunk *first = history->first;
    history->first = first->next;
    history->total -= first->size;
    history->allocated -= first->capacity;
    free(first);
}

/* Forgets the oldest bytes beyond the limits. */
static void trim(struct history *history) {
    while (history->first != history->last && (history->allocated > HISTORY_MEMORY || history->total - history->first->size >= HISTORY_LIMIT))
        forget_first(history);
    if (history->total > HISTORY_LIMIT) {
        size_t excess = history->total - HISTORY_LIMIT;
        history->first->start += excess;
        history->first->size -= excess;
        history->total = HISTORY_LIMIT;
    }
}

static struct history_chunk *new_chunk(struct history *history, enum frame_kind kind, size_t size) {
    size_t capacity = size < CHUNK_LEAST ? CHUNK_LEAST : size;
    struct history_chunk *chunk = malloc(sizeof *chunk + capacity);
    if (!chunk)
        return NULL;
    *chunk = (struct history_chunk){.kind = kind, .capacity = capacity};
    if (history->last)
        history->last->next = chunk;
    else
        history->first = chunk;
    history->last = chunk;
    history->allocated += capacity;
    return chunk;
}

void history_add(struct history *history, enum frame_kind kind, const uint8_t *bytes, size_t size) {
    struct history_chunk *chunk = history->last;
    if (!chunk || chunk->kind != kind || chunk->start + chunk->size + size > chunk->capacity)
        chunk = new_chunk(history, kind, size);
    if (!chunk)
        return;
    memcpy(chunk->bytes + chunk->start + chunk->size, bytes, size);
    chunk->size += size;
    history->total += size;
    trim(history);
}

void history_replay(const struct history *history, struct stream *stream) {
    for (const struct history_chunk *chunk = history->first; chunk; chunk = chunk->next)
        if (chunk->size)
            stream_send(stream, chunk->kind, chunk->bytes + chunk->start, chunk->size);
}

void history_free(struct history *history) {
    while (history->first) {
        struct history_chunk *chunk = history->first;
        history->first = chunk->next;
        free(chunk);
    }
    *history = (struct history){0};
}
