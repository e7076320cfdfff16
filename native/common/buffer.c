#include "buffer.h"

#include <stdlib.h>
#include <string.h>

enum { SMALLEST = 256 };

static bool grow(struct buffer *buffer, size_t needed) {
    size_t capacity = buffer->capacity ? buffer->capacity : SMALLEST;
    while (capacity < needed)
        capacity *= 2;
    uint8_t *data = malloc(capacity);
    if (!data)
        return false;
    if (buffer->length)
        memcpy(data, buffer_head(buffer), buffer->length);
    free(buffer->data);
    buffer->data = data;
    buffer->capacity = capacity;
    buffer->start = 0;
    return true;
}

uint8_t *buffer_reserve(struct buffer *buffer, size_t size) {
    if (size > SIZE_MAX / 4 - buffer->length) {
        buffer->failed = true;
        return NULL;
    }
    if (buffer->start + buffer->length + size > buffer->capacity) {
        /* Moving the content to the front pays only when at least half of the room lies unused before it. */
        if (buffer->length + size <= buffer->capacity && buffer->start >= buffer->capacity / 2) {
            memmove(buffer->data, buffer_head(buffer), buffer->length);
            buffer->start = 0;
        } else if (!grow(buffer, buffer->length + size)) {
            buffer->failed = true;
            return NULL;
        }
    }
    return buffer->data + buffer->start + buffer->length;
}

void buffer_commit(struct buffer *buffer, size_t size) { buffer->length += size; }

void buffer_append(struct buffer *buffer, const void *bytes, size_t size) {
    if (size == 0)
        return;
    uint8_t *room = buffer_reserve(buffer, size);
    if (!room)
        return;
    memcpy(room, bytes, size);
    buffer->length += size;
}

void buffer_consume(struct buffer *buffer, size_t size) {
    buffer->length -= size;
    buffer->start = buffer->length ? buffer->start + size : 0;
}

void buffer_truncate(struct buffer *buffer, size_t length) {
    if (length < buffer->length)
        buffer->length = length;
}

void buffer_release(struct buffer *buffer) {
    free(buffer->data);
    *buffer = (struct buffer){0};
}
