/* One byte stream to a host and its frames. */
#ifndef AGENTENV_CONNECTION_H
#define AGENTENV_CONNECTION_H

#include "connection_state.h"

enum {
    SEND_LIMIT = 4 << 20, /* with so much waiting to be sent no further requests are read */
    CONNECTION_LIMIT = 1024,
};

/* Takes over the descriptor; NULL (and the descriptor closed) when memory ran out. */
struct connection *connection_open(struct agent *agent, int fd, bool primary);

/* One whose host has not come yet: its hello is queued, so that whoever comes hears it without a page of memory being asked for, which is
 * what a copied machine's first answer would otherwise mostly wait for. NULL when memory ran out; it has a single owner until it begins. */
struct connection *connection_prepare(struct agent *agent);

/* The host of a prepared connection has come to `port`, whose descriptor the loop watches by `source` and which is taken over. */
void connection_begin(struct connection *connection, struct port *port, struct source *source);

/* The end of a turn: lets waiting streams produce, sends, and takes down what broke. */
void connections_settle(struct agent *agent);

/* Before the agent ends: what was answered last still goes out, as far as the sockets take it. */
void connections_farewell(struct agent *agent);

/* Whether some stream could go on at once, so that the loop must not sleep. */
bool connections_busy(const struct agent *agent);

/* Attaches a descriptor (which is taken over) to the last `size` bytes that were queued. */
void connection_pass(struct connection *connection, size_t size, int fd);

#endif
