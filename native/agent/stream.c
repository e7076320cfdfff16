#include "stream.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "errno_name.h"

enum { GRANT_STEP = 65536, SEND_STEP = 65536 };

static struct stream **bucket_of(struct connection *connection, uint32_t id) { return &connection->buckets[id % STREAM_BUCKETS]; }

static struct stream *find(struct connection *connection, uint32_t id) {
    struct stream *stream = *bucket_of(connection, id);
    while (stream && stream->id != id)
        stream = stream->bucket_next;
    return stream;
}

static struct stream *open_stream(struct connection *connection, uint32_t id) {
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream) {
        connection_fail(connection);
        return NULL;
    }
    static const struct stream_handler NOTHING = {0};
    struct stream **bucket = bucket_of(connection, id);
    *stream = (struct stream){.connection = connection, .id = id, .credit = FRAME_CREDIT, .handler = &NOTHING, .bucket_next = *bucket};
    *bucket = stream;
    connection->streams++;
    return stream;
}

static void leave_waiting(struct stream *stream) {
    struct connection *connection = stream->connection;
    if (!stream->waiting)
        return;
    struct stream **link = &connection->waiting;
    while (*link != stream)
        link = &(*link)->waiting_next;
    *link = stream->waiting_next;
    if (connection->waiting_end == &stream->waiting_next)
        connection->waiting_end = link;
    connection->waiting_count--;
    stream->waiting = false;
}

void stream_drop(struct stream *stream) {
    struct stream **link = bucket_of(stream->connection, stream->id);
    while (*link != stream)
        link = &(*link)->bucket_next;
    *link = stream->bucket_next;
    leave_waiting(stream);
    stream->connection->streams--;
    free(stream);
}

static void receive_open(struct connection *connection, const struct frame *frame) {
    if (frame->stream == 0 || find(connection, frame->stream) || mp_type(frame->body) != MP_MAP) {
        connection_fail(connection);
        return;
    }
    struct stream *stream = open_stream(connection, frame->stream);
    if (!stream)
        return;
    if (connection->streams > STREAM_LIMIT)
        stream_fail(stream, EAGAIN, "this connection has %d streams open already", STREAM_LIMIT);
    else
        stream_agent(stream)->start_operation(stream, frame->body);
}

static void receive_data(struct stream *stream, struct mp_value body) {
    struct mp_bytes bytes;
    if (mp_type(body) != MP_BIN || !mp_bytes(body, &bytes) || stream->ended || bytes.size > FRAME_CREDIT - stream->unconfirmed) {
        connection_fail(stream->connection);
        return;
    }
    stream->unconfirmed += bytes.size;
    if (stream->handler->data)
        stream->handler->data(stream, bytes.at, bytes.size);
    else
        stream_grant(stream, bytes.size);
}

static void receive_window(struct stream *stream, struct mp_value body) {
    uint64_t more;
    if (!mp_uint(body, &more) || more > UINT32_MAX) {
        connection_fail(stream->connection);
        return;
    }
    stream->credit += more;
    if (stream->wants)
        stream_wait(stream);
}

/* The machine goes on from a snapshot, perhaps taken without a freeze or long after it had run out: what ran in it is to go on all the same. */
static void renew(struct connection *connection) {
    bool held = connection->held;
    connection->held = true;
    streams_abandon(connection);
    connection->held = held;
    connection->renewed = true;
}

void stream_receive(struct connection *connection, const struct frame *frame) {
    if (frame->kind == FRAME_OPEN) {
        receive_open(connection, frame);
        return;
    }
    if (frame->kind == FRAME_CANCEL && frame->stream == 0) {
        renew(connection);
        return;
    }
    bool from_host = frame->kind == FRAME_DATA || frame->kind == FRAME_END || frame->kind == FRAME_WINDOW || frame->kind == FRAME_CALL ||
                     frame->kind == FRAME_CANCEL;
    if (!from_host || frame->stream == 0) {
        connection_fail(connection);
        return;
    }
    struct stream *stream = find(connection, frame->stream);
    if (!stream)
        return;
    const struct stream_handler *handler = stream->handler;
    if (frame->kind == FRAME_DATA) {
        receive_data(stream, frame->body);
    } else if (frame->kind == FRAME_WINDOW) {
        receive_window(stream, frame->body);
    } else if (frame->kind == FRAME_END && !stream->ended) {
        stream->ended = true;
        if (handler->end)
            handler->end(stream);
    } else if (frame->kind == FRAME_CALL && handler->call) {
        handler->call(stream, frame->body);
    } else if (frame->kind == FRAME_CANCEL && handler->cancel) {
        handler->cancel(stream);
    }
}

void streams_abandon(struct connection *connection) {
    for (size_t i = 0; i < STREAM_BUCKETS; i++) {
        while (connection->buckets[i]) {
            struct stream *stream = connection->buckets[i];
            if (stream->handler->abandon)
                stream->handler->abandon(stream);
            stream_drop(stream);
        }
    }
}

size_t stream_room(const struct stream *stream) {
    if (stream->connection->out.length >= SEND_HIGH)
        return 0;
    return stream->credit < SEND_STEP ? (size_t)stream->credit : SEND_STEP;
}

void stream_wait(struct stream *stream) {
    struct connection *connection = stream->connection;
    stream->wants = true;
    if (stream->waiting || stream->credit == 0)
        return;
    stream->waiting = true;
    stream->waiting_next = NULL;
    *connection->waiting_end = stream;
    connection->waiting_end = &stream->waiting_next;
    connection->waiting_count++;
}

void streams_pump(struct connection *connection) {
    for (size_t turns = connection->waiting_count; turns && connection->waiting && connection->out.length < SEND_HIGH; turns--) {
        struct stream *stream = connection->waiting;
        leave_waiting(stream);
        stream->wants = false;
        if (stream->handler->pump)
            stream->handler->pump(stream);
    }
}

void stream_send(struct stream *stream, enum frame_kind kind, const void *bytes, size_t size) {
    stream->credit -= size < stream->credit ? size : stream->credit;
    if (!frame_data(&stream->connection->out, stream->id, kind, bytes, size))
        connection_fail(stream->connection);
}

void stream_send_end(struct stream *stream) {
    size_t mark;
    mp_write_nil(stream_begin(stream, FRAME_END, &mark));
    stream_commit(stream, mark);
}

void stream_grant(struct stream *stream, size_t size) {
    stream->consumed += size;
    if (stream->consumed < GRANT_STEP || stream->ended)
        return;
    size_t mark;
    mp_write_uint(stream_begin(stream, FRAME_WINDOW, &mark), stream->consumed);
    stream_commit(stream, mark);
    stream->unconfirmed -= stream->consumed;
    stream->consumed = 0;
}

struct buffer *stream_begin(struct stream *stream, enum frame_kind kind, size_t *mark) {
    *mark = frame_begin(&stream->connection->out, stream->id, kind);
    return &stream->connection->out;
}

void stream_commit(struct stream *stream, size_t mark) {
    if (!frame_end(&stream->connection->out, mark))
        connection_fail(stream->connection);
}

struct buffer *stream_event(struct stream *stream, const char *name, uint32_t pairs, size_t *mark) {
    struct buffer *out = stream_begin(stream, FRAME_EVENT, mark);
    mp_write_map(out, pairs + 1);
    mp_write_str(out, "event");
    mp_write_str(out, name);
    return out;
}

void stream_finish(struct stream *stream, size_t mark) {
    stream_commit(stream, mark);
    stream_drop(stream);
}

void stream_done(struct stream *stream) {
    size_t mark;
    mp_write_map(stream_begin(stream, FRAME_RESULT, &mark), 0);
    stream_finish(stream, mark);
}

void stream_error(struct stream *stream, const char *code, const char *message) {
    size_t mark;
    struct buffer *out = stream_begin(stream, FRAME_ERROR, &mark);
    mp_write_map(out, 2);
    mp_write_str(out, "code");
    mp_write_str(out, code);
    mp_write_str(out, "message");
    mp_write_message(out, message);
    stream_finish(stream, mark);
}

void stream_fail(struct stream *stream, int number, const char *format, ...) {
    char message[768];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(message, sizeof message - 128, format, arguments);
    va_end(arguments);
    size_t at = length < 0 ? 0 : (size_t)length < sizeof message - 128 ? (size_t)length : sizeof message - 129;
    if (number != EPROTO)
        snprintf(message + at, sizeof message - at, ": %s", strerror(number));
    stream_error(stream, errno_name(number), message);
}
