/* The state of one byte stream to a host: what is queued both ways and which streams are open on it. connection.c moves the bytes,
 * stream.c opens and closes the streams. */
#ifndef AGENTENV_CONNECTION_STATE_H
#define AGENTENV_CONNECTION_STATE_H

#include "frame.h"
#include "loop.h"

struct agent;
struct port;
struct stream;

enum {
    SEND_HIGH = 262144,  /* with so much waiting to be sent nobody may produce more output */
    STREAM_LIMIT = 8192, /* streams open at once on one connection */
    STREAM_BUCKETS = 256,
};

/* A descriptor that travels with the frame that starts at `position` of all bytes ever sent. */
struct passenger {
    struct passenger *next;
    uint64_t position;
    size_t size;
    int fd;
};

struct connection {
    struct source source;
    struct agent *agent;
    struct connection *next;
    struct buffer in, out;
    size_t read_step; /* how much is asked for at once; grows while there is always more */
    uint64_t sent;
    struct passenger *passengers;
    struct stream *buckets[STREAM_BUCKETS];
    size_t streams;
    struct stream *waiting, **waiting_end; /* streams that want to send, the longest waiting first */
    size_t waiting_count;
    struct port *port; /* NULL: no virtio-serial port */
    bool held;         /* a snapshot is being taken: what breaks it ends nothing that it had started */
    bool primary;     /* the machine ends with this connection */
    bool unix_socket; /* can carry descriptors */
    bool renewed;     /* somebody else speaks on the other end and is to be greeted */
    bool broken;      /* will be taken down at the end of the turn */
};

/* Marks the connection as unusable; nothing is freed before the turn ends. */
static inline void connection_fail(struct connection *connection) { connection->broken = true; }

#endif
