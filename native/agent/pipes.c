#include "pipes.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "agent.h"
#include "history.h"

bool set_nonblocking(int fd, bool nonblocking) {
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, nonblocking ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) == 0;
}

bool make_pipe(int ends[2], int ours) {
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    if (fcntl(ends[ours], F_SETFL, O_NONBLOCK) == 0)
        return true;
    close(ends[0]);
    close(ends[1]);
    return false;
}

static void reach_end(struct outlet *outlet) {
    loop_close(&outlet->agent->loop, &outlet->source);
    outlet->ended(outlet);
}

/* Reads once. False when the end was reached (the outlet may be gone) or there is nothing now. */
static bool read_once(struct outlet *outlet) {
    struct stream *stream = outlet->stream;
    if (stream && outlet->impatient && stream->credit == 0)
        stream = NULL;
    size_t room = stream ? stream_room(stream) : SCRATCH_SIZE;
    if (room == 0) {
        loop_watch(&outlet->agent->loop, &outlet->source, 0);
        stream_wait(stream);
        return false;
    }
    uint8_t *scratch = outlet->agent->scratch;
    ssize_t size = read(outlet->source.fd, scratch, room < SCRATCH_SIZE ? room : SCRATCH_SIZE);
    if (size > 0) {
        if (outlet->history)
            history_add(outlet->history, outlet->kind, scratch, (size_t)size);
        if (stream)
            stream_send(stream, outlet->kind, scratch, (size_t)size);
        if (outlet->moved)
            outlet->moved(outlet);
        return true;
    }
    if (size < 0 && errno == EINTR)
        return true;
    if (size < 0 && errno == EAGAIN && !outlet->leave_when_empty)
        return false;
    /* The end: of a pipe (0), of a terminal (EIO), or of our patience. */
    reach_end(outlet);
    return false;
}

static void outlet_ready(struct source *source, uint32_t events) {
    (void)events;
    struct outlet *outlet = container_of(source, struct outlet, source);
    read_once(outlet);
}

void outlet_resume(struct outlet *outlet) {
    if (outlet->source.fd < 0)
        return;
    if (outlet->leave_when_empty)
        while (read_once(outlet))
            ;
    else if (!loop_watch(&outlet->agent->loop, &outlet->source, EPOLLIN))
        reach_end(outlet);
}

void outlet_open(struct outlet *outlet, struct agent *agent, int fd) {
    outlet->agent = agent;
    outlet->source = (struct source){.fd = fd, .ready = outlet_ready};
    outlet_resume(outlet);
}

void outlet_stop_waiting(struct outlet *outlet) {
    outlet->impatient = true;
    outlet_resume(outlet);
}

void outlet_leave_when_empty(struct outlet *outlet) {
    outlet->leave_when_empty = true;
    outlet_resume(outlet);
}

void outlet_close(struct outlet *outlet) { loop_close(&outlet->agent->loop, &outlet->source); }

static void give_back(struct inlet *inlet, size_t written) {
    size_t due = written < inlet->owed ? written : inlet->owed;
    inlet->owed -= due;
    if (inlet->stream && due)
        stream_grant(inlet->stream, due);
}

/* The inlet may be gone afterwards. */
static void shut(struct inlet *inlet) {
    if (inlet->closing)
        inlet->closing(inlet);
    inlet_close(inlet);
    if (inlet->closed)
        inlet->closed(inlet);
}

/* Writes what it can; the rest stays in the backlog. A reader that went away is no error: what it did not want is dropped. */
static void write_backlog(struct inlet *inlet) {
    while (inlet->backlog.length) {
        ssize_t size = write(inlet->source.fd, buffer_head(&inlet->backlog), inlet->backlog.length);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0 && errno == EAGAIN) {
            loop_watch(&inlet->agent->loop, &inlet->source, EPOLLOUT);
            return;
        }
        if (size < 0) {
            shut(inlet);
            return;
        }
        buffer_consume(&inlet->backlog, (size_t)size);
        give_back(inlet, (size_t)size);
    }
    buffer_release(&inlet->backlog);
    loop_watch(&inlet->agent->loop, &inlet->source, 0);
    if (inlet->ending)
        shut(inlet);
}

static void inlet_ready(struct source *source, uint32_t events) {
    (void)events;
    write_backlog(container_of(source, struct inlet, source));
}

void inlet_open(struct inlet *inlet, struct agent *agent, int fd) {
    inlet->agent = agent;
    inlet->source = (struct source){.fd = fd, .ready = inlet_ready};
    inlet->expected = false;
    if (inlet->backlog.length || inlet->ending)
        write_backlog(inlet);
}

static void push(struct inlet *inlet, const uint8_t *bytes, size_t size, bool from_stream) {
    if (from_stream)
        inlet->owed += size;
    if (inlet->source.fd < 0 && !inlet->expected) {
        give_back(inlet, inlet->owed);
        return;
    }
    while (inlet->source.fd >= 0 && inlet->backlog.length == 0 && size) {
        ssize_t written = write(inlet->source.fd, bytes, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0 && errno == EAGAIN)
            break;
        if (written < 0) {
            shut(inlet);
            return;
        }
        bytes += written;
        size -= (size_t)written;
        give_back(inlet, (size_t)written);
    }
    if (size == 0)
        return;
    buffer_append(&inlet->backlog, bytes, size);
    if (inlet->backlog.failed || !loop_watch(&inlet->agent->loop, &inlet->source, EPOLLOUT))
        shut(inlet);
}

void inlet_data(struct inlet *inlet, const void *bytes, size_t size) { push(inlet, bytes, size, true); }

void inlet_type(struct inlet *inlet, const void *bytes, size_t size) { push(inlet, bytes, size, false); }

void inlet_end(struct inlet *inlet) {
    inlet->ending = true;
    if (inlet->source.fd >= 0 && inlet->backlog.length == 0)
        shut(inlet);
}

void inlet_close(struct inlet *inlet) {
    loop_close(&inlet->agent->loop, &inlet->source);
    buffer_release(&inlet->backlog);
    give_back(inlet, inlet->owed);
}
