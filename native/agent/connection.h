/* One byte stream to a host, its frames, and the streams that are open on it. */
#ifndef AGENTENV_CONNECTION_H
#define AGENTENV_CONNECTION_H

#include "frame.h"
#include "loop.h"

struct agent;
struct stream;

enum {
    SEND_HIGH = 262144,          /* with so much waiting to be sent nobody may produce more output */
    SEND_LIMIT = 4 << 20,        /* with so much waiting no further requests are read */
    STREAM_LIMIT = 8192,         /* streams open at once on one connection */
    CONNECTION_LIMIT = 1024,
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
    bool primary;     /* the machine ends with this connection */
    bool unix_socket; /* can carry descriptors */
    bool broken;      /* will be taken down at the end of the turn */
};

/* Takes over the descriptor; NULL (and the descriptor closed) when memory ran out. */
struct connection *connection_open(struct agent *agent, int fd, bool primary);

/* Marks the connection as unusable; nothing is freed before the turn ends. */
void connection_fail(struct connection *connection);

/* The end of a turn: lets waiting streams produce, sends, and takes down what broke. */
void connections_settle(struct agent *agent);

/* Before the agent ends: what was answered last still goes out, as far as the sockets take it. */
void connections_farewell(struct agent *agent);

/* Whether some stream could go on at once, so that the loop must not sleep. */
bool connections_busy(const struct agent *agent);

/* Attaches a descriptor (which is taken over) to the last `size` bytes that were queued. */
void connection_pass(struct connection *connection, size_t size, int fd);

#endif
