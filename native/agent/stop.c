#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "agent.h"
#include "machine.h"
#include "procfs.h"

/* A process stops when it next leaves the kernel; that is looked for this often, and waited for no longer than this (seconds). */
static const double LOOK_AGAIN = 0.001;
static const double PATIENCE = 1.0;

struct halt {
    struct stream *stream;
    struct timer again;
    double deadline;
};

static void free_halt(struct halt *halt) {
    loop_disarm(&stream_agent(halt->stream)->loop, &halt->again);
    free(halt);
}

static void look(struct halt *halt) {
    struct stream *stream = halt->stream;
    struct agent *agent = stream_agent(stream);
    if (!everybody_stopped(agent->is_init) && agent->loop.now < halt->deadline) {
        loop_arm(&agent->loop, &halt->again, LOOK_AGAIN);
        return;
    }
    free_halt(halt);
    stream_done(stream);
}

static void look_again(struct timer *timer) { look(container_of(timer, struct halt, again)); }

static void abandon(struct stream *stream) { free_halt(stream->state); }

static void cancel(struct stream *stream) {
    abandon(stream);
    stream_error(stream, "ECANCELED", "cancelled; the processes stay stopped");
}

static const struct stream_handler HALT_HANDLER = {.cancel = cancel, .abandon = abandon};

void operation_stop_all(struct stream *stream, struct mp_value body) {
    (void)body;
    struct agent *agent = stream_agent(stream);
    struct halt *halt = calloc(1, sizeof *halt);
    if (!halt) {
        stream_fail(stream, ENOMEM, "stop_all");
        return;
    }
    *halt = (struct halt){.stream = stream, .again.fire = look_again, .deadline = agent->loop.now + PATIENCE};
    stream->handler = &HALT_HANDLER;
    stream->state = halt;
    signal_everybody(agent->is_init, SIGSTOP);
    look(halt);
}

void operation_continue_all(struct stream *stream, struct mp_value body) {
    (void)body;
    signal_everybody(stream_agent(stream)->is_init, SIGCONT);
    stream_done(stream);
}
