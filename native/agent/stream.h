/* One operation on a connection: credit in both directions, and the frames that answer it. */
#ifndef AGENTENV_STREAM_H
#define AGENTENV_STREAM_H

#include "connection_state.h"

struct stream;

/* What an operation does about what happens on its stream; a NULL member ignores it. */
struct stream_handler {
    void (*data)(struct stream *stream, const uint8_t *bytes, size_t size);
    void (*end)(struct stream *stream);
    void (*call)(struct stream *stream, struct mp_value body);
    void (*pump)(struct stream *stream);    /* there is room to send again, after `stream_wait` */
    void (*cancel)(struct stream *stream);  /* must bring the stream to its end, at once or soon */
    void (*abandon)(struct stream *stream); /* the stream is gone: free everything, send nothing */
};

struct stream {
    struct connection *connection;
    struct stream *bucket_next;
    struct stream *waiting_next;
    const struct stream_handler *handler;
    void *state;
    uint32_t id;
    uint64_t credit;     /* bytes that may still be sent */
    size_t unconfirmed;  /* bytes received and not yet given back as credit */
    size_t consumed;     /* of those, the ones that are used up */
    bool waiting, wants, ended;
};

/* Handles one frame of the host. Fails the connection when the frame breaks the protocol. */
void stream_receive(struct connection *connection, const struct frame *frame);

/* Drops every stream without an answer, since the connection is gone. */
void streams_abandon(struct connection *connection);

/* Gives waiting streams their turn while there is room. */
void streams_pump(struct connection *connection);

/* How many bytes of output the stream may send now. */
size_t stream_room(const struct stream *stream);

/* Asks for `pump` to be called when there is room. */
void stream_wait(struct stream *stream);

void stream_send(struct stream *stream, enum frame_kind kind, const void *bytes, size_t size);
void stream_send_end(struct stream *stream);

/* `size` received bytes are used up; the host gets them back as credit in steps. */
void stream_grant(struct stream *stream, size_t size);

/* Begins an EVENT, RESULT or ERROR; the body (a map) is then written into the returned buffer. */
struct buffer *stream_begin(struct stream *stream, enum frame_kind kind, size_t *mark);
void stream_commit(struct stream *stream, size_t mark);

/* Begins an EVENT map of `pairs` further pairs. */
struct buffer *stream_event(struct stream *stream, const char *name, uint32_t pairs, size_t *mark);

/* The last frame: `stream_finish` commits it and frees the stream. */
void stream_finish(struct stream *stream, size_t mark);
void stream_done(struct stream *stream); /* RESULT {} */
void stream_fail(struct stream *stream, int number, const char *format, ...) __attribute__((format(printf, 3, 4)));
void stream_error(struct stream *stream, const char *code, const char *message);

/* Frees the stream without a last frame. */
void stream_drop(struct stream *stream);

static inline struct agent *stream_agent(const struct stream *stream) { return stream->connection->agent; }

#endif
