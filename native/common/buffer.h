/* A growable byte queue: bytes are appended at the end and consumed from the front. */
#ifndef AGENTENV_BUFFER_H
#define AGENTENV_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buffer {
    uint8_t *data;
    size_t start;    /* where the first unconsumed byte lies */
    size_t length;   /* how many bytes are queued */
    size_t capacity;
    bool failed;     /* memory ran out once: the content is incomplete and must not be used */
};

static inline uint8_t *buffer_head(const struct buffer *buffer) { return buffer->data + buffer->start; }

/* Room for `size` more bytes at the end, or NULL (and `failed`) when memory ran out. */
uint8_t *buffer_reserve(struct buffer *buffer, size_t size);

/* Declares `size` bytes of the reserved room as filled. */
void buffer_commit(struct buffer *buffer, size_t size);

void buffer_append(struct buffer *buffer, const void *bytes, size_t size);
void buffer_consume(struct buffer *buffer, size_t size);

/* Cuts the queue back to its first `length` bytes. */
void buffer_truncate(struct buffer *buffer, size_t length);

/* Frees the memory; the buffer is empty and usable again. */
void buffer_release(struct buffer *buffer);

#endif
