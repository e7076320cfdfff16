/* The frames of docs/agent-protocol.md: a big-endian length, then one MessagePack array [stream, kind, body]. */
#ifndef AGENTENV_FRAME_H
#define AGENTENV_FRAME_H

#include "buffer.h"
#include "msgpack.h"

enum {
    FRAME_LIMIT = 1048576,     /* bytes after the length */
    FRAME_DATA_LIMIT = 262144, /* bytes in one DATA or DATA_ERR */
    FRAME_CREDIT = 262144,     /* the credit that each direction of a stream starts with */
};

enum frame_kind {
    FRAME_OPEN,
    FRAME_DATA,
    FRAME_DATA_ERR,
    FRAME_END,
    FRAME_WINDOW,
    FRAME_EVENT,
    FRAME_CALL,
    FRAME_RESULT,
    FRAME_ERROR,
    FRAME_CANCEL,
    FRAME_KINDS,
};

struct frame {
    uint32_t stream;
    enum frame_kind kind;
    struct mp_value body;
};

enum frame_status { FRAME_PARTIAL, FRAME_COMPLETE, FRAME_MALFORMED };

/* Looks for one frame at the start of `data`. COMPLETE: `frame` (which points into `data`) and `used` are set.
 * PARTIAL: `used` says how many bytes the frame will need in all, as far as that is known. */
enum frame_status frame_parse(const uint8_t *data, size_t size, struct frame *frame, size_t *used);

/* Starts a frame whose body the caller then writes with mp_write_*; the mark is for `frame_end`. */
size_t frame_begin(struct buffer *buffer, uint32_t stream, enum frame_kind kind);

/* Completes the frame; false, and the frame is gone, when it is longer than the limit or memory ran out. */
bool frame_end(struct buffer *buffer, size_t mark);

/* A whole DATA or DATA_ERR frame. */
bool frame_data(struct buffer *buffer, uint32_t stream, enum frame_kind kind, const void *bytes, size_t size);

#endif
