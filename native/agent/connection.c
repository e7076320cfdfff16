#include "connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"
#include "ports.h"
#include "stream.h"

enum {
    READ_STEP_LEAST = 16384,
    READ_STEP_MOST = 262144,
    BUFFER_KEPT = 131072, /* what an idle connection may keep; more is given back */
};

static bool is_unix_socket(int fd) {
    int domain = 0;
    socklen_t size = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

static void say_hello(struct connection *connection) {
    size_t mark = frame_begin(&connection->out, 0, FRAME_EVENT);
    struct buffer *out = &connection->out;
    mp_write_map(out, 4);
    mp_write_str(out, "event");
    mp_write_str(out, "hello");
    mp_write_str(out, "protocol");
    mp_write_uint(out, AGENT_PROTOCOL);
    mp_write_str(out, "version");
    mp_write_str(out, AGENT_VERSION);
    mp_write_str(out, "pid");
    mp_write_int(out, getpid());
    if (!frame_end(out, mark))
        connection_fail(connection);
}

static void handle_frames(struct connection *connection) {
    struct buffer *in = &connection->in;
    while (!connection->broken && connection->out.length < SEND_LIMIT) {
        struct frame frame;
        size_t used;
        enum frame_status status = frame_parse(buffer_head(in), in->length, &frame, &used);
        if (status == FRAME_PARTIAL)
            return;
        if (status == FRAME_MALFORMED) {
            connection_fail(connection);
            return;
        }
        stream_receive(connection, &frame);
        if (connection->renewed)
            say_hello(connection);
        connection->renewed = false;
        buffer_consume(in, used);
    }
}

static size_t bytes_wanted(const struct connection *connection) {
    struct frame frame;
    size_t used;
    size_t have = connection->in.length;
    if (frame_parse(buffer_head(&connection->in), have, &frame, &used) == FRAME_PARTIAL && used > have + connection->read_step)
        return used - have;
    return connection->read_step;
}

static void receive(struct connection *connection) {
    size_t wanted = bytes_wanted(connection);
    uint8_t *room = buffer_reserve(&connection->in, wanted);
    if (!room) {
        connection_fail(connection);
        return;
    }
    ssize_t size = read(connection->source.fd, room, wanted);
    if (size > 0) {
        buffer_commit(&connection->in, (size_t)size);
        if ((size_t)size < wanted)
            connection->read_step = READ_STEP_LEAST;
        else if (connection->read_step < READ_STEP_MOST)
            connection->read_step *= 2;
        handle_frames(connection);
    } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
        connection_fail(connection);
    }
}

static void ready(struct source *source, uint32_t events) {
    struct connection *connection = container_of(source, struct connection, source);
    if (!connection->broken && events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        receive(connection);
}

void connection_pass(struct connection *connection, size_t size, int fd) {
    struct passenger *passenger = calloc(1, sizeof *passenger);
    if (!passenger) {
        close(fd);
        connection_fail(connection);
        return;
    }
    *passenger = (struct passenger){.position = connection->sent + connection->out.length - size, .size = size, .fd = fd};
    struct passenger **link = &connection->passengers;
    while (*link)
        link = &(*link)->next;
    *link = passenger;
}

static ssize_t send_with_descriptor(struct connection *connection, struct passenger *passenger) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec frame = {buffer_head(&connection->out), passenger->size};
    struct msghdr message = {.msg_iov = &frame, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &passenger->fd, sizeof(int));
    ssize_t size = sendmsg(connection->source.fd, &message, MSG_NOSIGNAL);
    if (size > 0) {
        connection->passengers = passenger->next;
        close(passenger->fd);
        free(passenger);
    }
    return size;
}

static ssize_t send_some(struct connection *connection) {
    struct passenger *passenger = connection->passengers;
    if (passenger && passenger->position == connection->sent)
        return send_with_descriptor(connection, passenger);
    size_t size = connection->out.length;
    if (passenger && passenger->position - connection->sent < size)
        size = (size_t)(passenger->position - connection->sent);
    return write(connection->source.fd, buffer_head(&connection->out), size);
}

static void flush(struct connection *connection) {
    while (!connection->broken && connection->out.length) {
        ssize_t size = send_some(connection);
        if (size > 0) {
            buffer_consume(&connection->out, (size_t)size);
            connection->sent += (uint64_t)size;
        } else if (errno == EAGAIN) {
            return;
        } else if (errno != EINTR) {
            connection_fail(connection);
        }
    }
}

static void close_connection(struct connection *connection) {
    struct loop *loop = &connection->agent->loop;
    streams_abandon(connection);
    loop_close(loop, &connection->source);
    while (connection->passengers) {
        struct passenger *passenger = connection->passengers;
        connection->passengers = passenger->next;
        close(passenger->fd);
        free(passenger);
    }
    buffer_release(&connection->in);
    buffer_release(&connection->out);
    if (connection->primary)
        loop->stopped = true;
    if (connection->port)
        port_reopen(connection->port);
    connection->agent->connection_count--;
    free(connection);
}

static void give_back(struct buffer *buffer) {
    if (buffer->length == 0 && buffer->capacity > BUFFER_KEPT)
        buffer_release(buffer);
}

/* Sends, lets waiting streams refill the queue, and decides what to watch for. */
static void settle(struct connection *connection) {
    bool was_full = connection->out.length >= SEND_LIMIT;
    flush(connection);
    if (connection->waiting && connection->out.length < SEND_HIGH) {
        streams_pump(connection);
        flush(connection);
    }
    if (was_full && connection->out.length < SEND_LIMIT)
        handle_frames(connection);
    if (connection->streams == 0) {
        give_back(&connection->in);
        give_back(&connection->out);
    }
    uint32_t events = (connection->out.length < SEND_LIMIT ? EPOLLIN : 0) | (connection->out.length ? EPOLLOUT : 0);
    if (!loop_watch(&connection->agent->loop, &connection->source, events))
        connection_fail(connection);
}

void connections_settle(struct agent *agent) {
    for (struct connection **link = &agent->connections; *link;) {
        struct connection *connection = *link;
        if (!connection->broken)
            settle(connection);
        if (connection->broken) {
            *link = connection->next;
            close_connection(connection);
        } else {
            link = &connection->next;
        }
    }
}

void connections_farewell(struct agent *agent) {
    for (struct connection *connection = agent->connections; connection; connection = connection->next) {
        flush(connection);
        shutdown(connection->source.fd, SHUT_WR);
        /* A socket that is closed with bytes unread resets the connection, and the host would lose what it was just sent. */
        while (read(connection->source.fd, agent->scratch, sizeof agent->scratch) > 0)
            ;
    }
}

bool connections_busy(const struct agent *agent) {
    for (const struct connection *connection = agent->connections; connection; connection = connection->next)
        if (connection->waiting && connection->out.length < SEND_HIGH)
            return true;
    return false;
}

struct connection *connection_prepare(struct agent *agent) {
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection)
        return NULL;
    *connection = (struct connection){.source = {.fd = -1, .ready = ready}, .agent = agent, .read_step = READ_STEP_LEAST};
    connection->waiting_end = &connection->waiting;
    say_hello(connection);
    return connection;
}

static void begin(struct connection *connection) {
    struct agent *agent = connection->agent;
    connection->held = agent->frozen;
    connection->next = agent->connections;
    agent->connections = connection;
    agent->connection_count++;
}

void connection_begin(struct connection *connection, struct port *port, struct source *source) {
    connection->port = port;
    begin(connection);
    connection->source.fd = source->fd;
    flush(connection);
    if (!loop_move(&connection->agent->loop, source, &connection->source, EPOLLIN))
        connection_fail(connection);
}

struct connection *connection_open(struct agent *agent, int fd, bool primary) {
    struct connection *connection = connection_prepare(agent);
    if (!connection) {
        close(fd);
        return NULL;
    }
    connection->source.fd = fd;
    connection->primary = primary;
    connection->unix_socket = is_unix_socket(fd);
    begin(connection);
    /* A host often has its first request in the socket before the agent runs: serve it in this turn. */
    receive(connection);
    return connection;
}
