#include "frame.h"

enum { LENGTH_SIZE = 4 };

static bool read_triple(const uint8_t *data, size_t size, struct frame *frame) {
    struct mp_value whole, item;
    struct mp_iterator items;
    uint64_t stream, kind;
    if (!mp_parse(data, size, &whole) || !mp_iterate_array(whole, &items) || items.left != 3)
        return false;
    if (!mp_next(&items, &item) || !mp_uint(item, &stream) || stream > UINT32_MAX)
        return false;
    if (!mp_next(&items, &item) || !mp_uint(item, &kind) || kind >= FRAME_KINDS)
        return false;
    frame->stream = (uint32_t)stream;
    frame->kind = (enum frame_kind)kind;
    return mp_next(&items, &frame->body);
}

enum frame_status frame_parse(const uint8_t *data, size_t size, struct frame *frame, size_t *used) {
    *used = LENGTH_SIZE;
    if (size < LENGTH_SIZE)
        return FRAME_PARTIAL;
    size_t length = (size_t)data[0] << 24 | (size_t)data[1] << 16 | (size_t)data[2] << 8 | data[3];
    if (length == 0 || length > FRAME_LIMIT)
        return FRAME_MALFORMED;
    *used = LENGTH_SIZE + length;
    if (size < *used)
        return FRAME_PARTIAL;
    return read_triple(data + LENGTH_SIZE, length, frame) ? FRAME_COMPLETE : FRAME_MALFORMED;
}

size_t frame_begin(struct buffer *buffer, uint32_t stream, enum frame_kind kind) {
    size_t mark = buffer->length;
    buffer_append(buffer, "\0\0\0\0", LENGTH_SIZE);
    mp_write_array(buffer, 3);
    mp_write_uint(buffer, stream);
    mp_write_uint(buffer, kind);
    return mark;
}

bool frame_end(struct buffer *buffer, size_t mark) {
    size_t length = buffer->length - mark - LENGTH_SIZE;
    if (buffer->failed || length > FRAME_LIMIT) {
        buffer_truncate(buffer, mark);
        return false;
    }
    uint8_t *at = buffer_head(buffer) + mark;
    for (int i = 0; i < LENGTH_SIZE; i++)
        at[i] = (uint8_t)(length >> (8 * (LENGTH_SIZE - 1 - i)));
    return true;
}

bool frame_data(struct buffer *buffer, uint32_t stream, enum frame_kind kind, const void *bytes, size_t size) {
    size_t mark = frame_begin(buffer, stream, kind);
    mp_write_bin(buffer, bytes, size);
    return frame_end(buffer, mark);
}
