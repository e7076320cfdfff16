#include "dial.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent.h"
#include "connection.h"
#include "operations.h"
#include "pipes.h"

/* A unix server with a full backlog answers EAGAIN and cannot be waited for: it is asked again (seconds, and how often). */
static const double RETRY_AFTER = 0.005;
enum { RETRIES = 2000 };

struct dialled {
    struct agent *agent;
    struct stream *stream;
    struct source connecting;
    struct timer again;
    int retries;
    struct sockaddr_storage address;
    socklen_t address_size;
    int directory;   /* of a unix socket whose path is too long for an address; -1: none */
    bool try_ipv6;   /* after 127.0.0.1 has refused */
    bool pass_fd;
    struct outlet out;
    struct inlet in;
};

static void free_dialled(struct dialled *dialled) {
    dialled->in.stream = NULL;
    loop_disarm(&dialled->agent->loop, &dialled->again);
    loop_close(&dialled->agent->loop, &dialled->connecting);
    outlet_close(&dialled->out);
    inlet_close(&dialled->in);
    if (dialled->directory >= 0)
        close(dialled->directory);
    free(dialled);
}

static void fail(struct dialled *dialled, int problem) {
    struct stream *stream = dialled->stream;
    free_dialled(dialled);
    stream_fail(stream, problem, "dial");
}

static void conclude(struct dialled *dialled) {
    if (dialled->out.source.fd >= 0 || dialled->in.source.fd >= 0)
        return;
    struct stream *stream = dialled->stream;
    free_dialled(dialled);
    stream_done(stream);
}

static void far_end_finished(struct outlet *outlet) {
    struct dialled *dialled = container_of(outlet, struct dialled, out);
    stream_send_end(dialled->stream);
    conclude(dialled);
}

static void near_end_closing(struct inlet *inlet) { shutdown(inlet->source.fd, SHUT_WR); }

static void near_end_finished(struct inlet *inlet) { conclude(container_of(inlet, struct dialled, in)); }

static void pass_on(struct dialled *dialled, int fd) {
    struct stream *stream = dialled->stream;
    struct connection *connection = stream->connection;
    size_t mark;
    set_nonblocking(fd, false);
    stream_event(stream, "connected", 0, &mark);
    stream_commit(stream, mark);
    connection_pass(connection, connection->out.length - mark, fd);
    free_dialled(dialled);
    stream_drop(stream);
}

static void connected(struct dialled *dialled) {
    struct stream *stream = dialled->stream;
    int fd = dialled->connecting.fd;
    loop_watch(&dialled->agent->loop, &dialled->connecting, 0);
    dialled->connecting.fd = -1;
    if (dialled->pass_fd) {
        pass_on(dialled, fd);
        return;
    }
    int writer = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (writer < 0) {
        int problem = errno;
        close(fd);
        fail(dialled, problem);
        return;
    }
    size_t mark;
    stream_event(stream, "connected", 0, &mark);
    stream_commit(stream, mark);
    dialled->out.source.fd = fd; /* so that the inlet, should it end at once, finds the other side open */
    inlet_open(&dialled->in, dialled->agent, writer);
    outlet_open(&dialled->out, dialled->agent, fd);
}

static void attempt(struct dialled *dialled);

static void refused(struct dialled *dialled, int problem) {
    loop_close(&dialled->agent->loop, &dialled->connecting);
    if (dialled->try_ipv6) {
        struct sockaddr_in *four = (struct sockaddr_in *)&dialled->address;
        struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = four->sin_port, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
        memcpy(&dialled->address, &six, sizeof six);
        dialled->address_size = sizeof six;
        dialled->try_ipv6 = false;
        attempt(dialled);
    } else {
        /* A sandbox without IPv6 says so for ::1; that nobody listens on the port is what the caller wants to know. */
        fail(dialled, problem == EADDRNOTAVAIL || problem == EAFNOSUPPORT ? ECONNREFUSED : problem);
    }
}

static void writable(struct source *source, uint32_t events) {
    (void)events;
    struct dialled *dialled = container_of(source, struct dialled, connecting);
    int problem = 0;
    socklen_t size = sizeof problem;
    if (getsockopt(source->fd, SOL_SOCKET, SO_ERROR, &problem, &size) != 0)
        problem = errno;
    if (problem)
        refused(dialled, problem);
    else
        connected(dialled);
}

static void attempt(struct dialled *dialled) {
    struct loop *loop = &dialled->agent->loop;
    int fd = socket(dialled->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    dialled->connecting = (struct source){.fd = fd, .ready = writable};
    if (fd < 0) {
        refused(dialled, errno);
    } else if (connect(fd, (struct sockaddr *)&dialled->address, dialled->address_size) == 0) {
        connected(dialled);
    } else if (errno == EINPROGRESS) {
        if (!loop_watch(loop, &dialled->connecting, EPOLLOUT))
            fail(dialled, errno);
    } else if (errno == EAGAIN && dialled->retries++ < RETRIES) {
        loop_close(loop, &dialled->connecting);
        loop_arm(loop, &dialled->again, RETRY_AFTER);
    } else {
        refused(dialled, errno);
    }
}

static void again(struct timer *timer) { attempt(container_of(timer, struct dialled, again)); }

static void on_data(struct stream *stream, const uint8_t *bytes, size_t size) {
    struct dialled *dialled = stream->state;
    inlet_data(&dialled->in, bytes, size);
}

static void on_end(struct stream *stream) {
    struct dialled *dialled = stream->state;
    inlet_end(&dialled->in);
}

static void on_pump(struct stream *stream) {
    struct dialled *dialled = stream->state;
    outlet_resume(&dialled->out);
}

static void on_abandon(struct stream *stream) { free_dialled(stream->state); }

static void on_cancel(struct stream *stream) {
    on_abandon(stream);
    stream_error(stream, "ECANCELED", "cancelled");
}

static const struct stream_handler DIAL_HANDLER = {
    .data = on_data, .end = on_end, .pump = on_pump, .cancel = on_cancel, .abandon = on_abandon};

static void set_port(struct dialled *dialled, int64_t port) {
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    memcpy(&dialled->address, &four, sizeof four);
    dialled->address_size = sizeof four;
    dialled->try_ipv6 = true;
}

/* A path longer than an address can hold is reached through a descriptor of its directory. */
static int set_path(struct dialled *dialled, const char *path) {
    struct sockaddr_un unix_address = {.sun_family = AF_UNIX};
    char shortened[sizeof unix_address.sun_path + 1];
    size_t size = strlen(path);
    if (size >= sizeof unix_address.sun_path && path[0] != '@') {
        const char *slash = strrchr(path, '/');
        char *directory = slash ? strndup(path, (size_t)(slash - path) + 1) : NULL;
        dialled->directory = directory ? open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
        free(directory);
        if (dialled->directory < 0)
            return slash ? errno : ENAMETOOLONG;
        size = (size_t)snprintf(shortened, sizeof shortened, "/proc/self/fd/%d/%s", dialled->directory, slash + 1);
        path = shortened;
    }
    if (size >= sizeof unix_address.sun_path)
        return ENAMETOOLONG;
    memcpy(unix_address.sun_path, path, size);
    if (path[0] == '@')
        unix_address.sun_path[0] = '\0';
    dialled->address_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size + (path[0] != '@'));
    memcpy(&dialled->address, &unix_address, sizeof unix_address);
    return 0;
}

static struct dialled *new_dialled(struct stream *stream, bool pass_fd) {
    struct agent *agent = stream_agent(stream);
    struct dialled *dialled = calloc(1, sizeof *dialled);
    if (!dialled) {
        stream_fail(stream, ENOMEM, "dial");
        return NULL;
    }
    *dialled = (struct dialled){.agent = agent, .stream = stream, .directory = -1, .pass_fd = pass_fd, .connecting.fd = -1, .again.fire = again};
    dialled->out = (struct outlet){.source.fd = -1, .agent = agent, .stream = stream, .kind = FRAME_DATA, .ended = far_end_finished};
    dialled->in = (struct inlet){.source.fd = -1, .agent = agent, .stream = stream, .expected = true};
    dialled->in.closing = near_end_closing;
    dialled->in.closed = near_end_finished;
    stream->handler = &DIAL_HANDLER;
    stream->state = dialled;
    return dialled;
}

void operation_dial(struct stream *stream, struct mp_value body) {
    int64_t port = 0;
    char *path = NULL;
    bool pass_fd = false;
    if (!take_int(stream, body, "port", false, 1, 65535, &port) || !take_flag(stream, body, "pass_fd", &pass_fd) ||
        !take_text(stream, body, "path", false, &path))
        return;
    if ((port != 0) == (path != NULL && *path != '\0')) {
        stream_fail(stream, EPROTO, "dial needs either 'port' or 'path'");
    } else if (pass_fd && !stream->connection->unix_socket) {
        stream_fail(stream, EOPNOTSUPP, "this connection cannot carry descriptors");
    } else {
        struct dialled *dialled = new_dialled(stream, pass_fd);
        int problem = dialled && path ? set_path(dialled, path) : 0;
        if (dialled && !path)
            set_port(dialled, port);
        if (problem)
            fail(dialled, problem);
        else if (dialled)
            attempt(dialled);
    }
    free(path);
}
