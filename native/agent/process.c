#include "process.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "operations.h"
#include "procfs.h"

/* How long an ended process's pipe may stay open in the hands of a grandchild before its result is told (seconds). */
static const double LINGER = 0.1;
enum { FINISHED_LIMIT = 64 };

static struct process **bucket_of(const struct agent *agent, pid_t pid) {
    return (struct process **)&agent->processes[(size_t)pid % PROCESS_BUCKETS];
}

struct process *process_find(const struct agent *agent, pid_t pid) {
    struct process *process = *bucket_of(agent, pid);
    while (process && process->pid != pid)
        process = process->next;
    return process;
}

struct process *process_find_finished(const struct agent *agent, pid_t pid) {
    struct process *process = agent->finished;
    while (process && process->pid != pid)
        process = process->next;
    return process;
}

void process_free(struct process *process) {
    struct loop *loop = &process->agent->loop;
    process->in.stream = NULL;
    outlet_close(&process->out);
    outlet_close(&process->err);
    inlet_close(&process->in);
    loop_disarm(loop, &process->deadline);
    loop_disarm(loop, &process->silence);
    loop_disarm(loop, &process->linger);
    history_free(&process->history);
    strings_free(&process->argv);
    free(process->cwd);
    free(process->user);
    free(process->tag);
    free(process);
}

static double seconds(struct timeval time) { return (double)time.tv_sec + (double)time.tv_usec / 1e6; }

static void write_count(struct buffer *out, const char *key, bool known, int value) {
    mp_write_str(out, key);
    if (known)
        mp_write_int(out, value);
    else
        mp_write_nil(out);
}

static void write_seconds(struct buffer *out, const char *key, double value) {
    mp_write_str(out, key);
    mp_write_double(out, value);
}

static void tell_result(struct process *process) {
    size_t mark;
    struct buffer *out = stream_begin(process->stream, FRAME_RESULT, &mark);
    mp_write_map(out, 8);
    write_count(out, "exit_code", WIFEXITED(process->status), WEXITSTATUS(process->status));
    write_count(out, "signal", WIFSIGNALED(process->status), WTERMSIG(process->status));
    mp_write_str(out, "timed_out");
    if (process->timed_out)
        mp_write_str(out, process->timed_out);
    else
        mp_write_nil(out);
    write_seconds(out, "wall", process->wall);
    write_seconds(out, "user", seconds(process->used.ru_utime));
    write_seconds(out, "system", seconds(process->used.ru_stime));
    mp_write_str(out, "max_rss");
    mp_write_uint(out, (uint64_t)process->used.ru_maxrss * 1024);
    mp_write_str(out, "oom_kills");
    mp_write_uint(out, process->oom_kills);
    stream_finish(process->stream, mark);
    process->stream = NULL;
}

static void remember_finished(struct process *process) {
    struct agent *agent = process->agent;
    process->next = NULL;
    *agent->finished_end = process;
    agent->finished_end = &process->next;
    if (++agent->finished_count <= FINISHED_LIMIT)
        return;
    struct process *oldest = agent->finished;
    agent->finished = oldest->next;
    agent->finished_count--;
    process_free(oldest);
}

static void forget_finished(struct process *process) {
    struct agent *agent = process->agent;
    struct process **link = &agent->finished;
    while (*link != process)
        link = &(*link)->next;
    *link = process->next;
    if (agent->finished_end == &process->next)
        agent->finished_end = link;
    agent->finished_count--;
}

/* Tells the result once the process has ended and its output has been read to the end. Frees it (or keeps its outcome). */
static void conclude(struct process *process) {
    if (!process->ended || process->out.source.fd >= 0 || process->err.source.fd >= 0)
        return;
    struct process **link = bucket_of(process->agent, process->pid);
    while (*link != process)
        link = &(*link)->next;
    *link = process->next;
    loop_disarm(&process->agent->loop, &process->linger);
    if (!process->stream && process->keep) {
        remember_finished(process);
        return;
    }
    if (process->stream)
        tell_result(process);
    process_free(process);
}

static void out_ended(struct outlet *outlet) { conclude(container_of(outlet, struct process, out)); }
static void err_ended(struct outlet *outlet) { conclude(container_of(outlet, struct process, err)); }

static void noticed(struct process *process) {
    if (process->silence.slot)
        loop_arm(&process->agent->loop, &process->silence, process->idle_timeout);
}

static void out_moved(struct outlet *outlet) { noticed(container_of(outlet, struct process, out)); }
static void err_moved(struct outlet *outlet) { noticed(container_of(outlet, struct process, err)); }

static void time_out(struct process *process, const char *kind) {
    loop_disarm(&process->agent->loop, &process->deadline);
    loop_disarm(&process->agent->loop, &process->silence);
    if (process->ended)
        return;
    process->timed_out = kind;
    kill_session(process->pid);
}

static void deadline_passed(struct timer *timer) { time_out(container_of(timer, struct process, deadline), "wall"); }

static bool held_up(const struct outlet *outlet) { return outlet->source.fd >= 0 && outlet->source.events == 0; }

static void silent_too_long(struct timer *timer) {
    struct process *process = container_of(timer, struct process, silence);
    /* What the host does not take cannot be seen: the process may well be talking. */
    if (held_up(&process->out) || held_up(&process->err))
        loop_arm(&process->agent->loop, timer, process->idle_timeout);
    else
        time_out(process, "idle");
}

static void lingered(struct timer *timer) {
    struct process *process = container_of(timer, struct process, linger);
    /* Each of these may conclude (and free) the process, the first only when the second is at its end already. */
    bool err_open = process->err.source.fd >= 0;
    outlet_leave_when_empty(&process->out);
    if (err_open)
        outlet_leave_when_empty(&process->err);
}

void process_add(struct process *process) {
    struct process **bucket = bucket_of(process->agent, process->pid);
    process->next = *bucket;
    *bucket = process;
    process->out.moved = out_moved;
    process->out.ended = out_ended;
    process->err.moved = err_moved;
    process->err.ended = err_ended;
    process->deadline.fire = deadline_passed;
    process->silence.fire = silent_too_long;
    process->linger.fire = lingered;
}

void process_limit_time(struct process *process, double wall, double idle) {
    process->idle_timeout = idle;
    if (wall > 0)
        loop_arm(&process->agent->loop, &process->deadline, wall);
    if (idle > 0)
        loop_arm(&process->agent->loop, &process->silence, idle);
}

static void set_stream(struct process *process, struct stream *stream) {
    process->stream = stream;
    process->out.stream = stream;
    process->err.stream = stream;
    process->in.stream = stream;
    /* Bytes that the earlier stream had sent are nobody's credit any more. */
    process->in.owed = 0;
}

/* Lets the output go on. The process may conclude (and be gone) in the last call, but in the first only when the second is not due. */
static void resume_output(struct process *process) {
    bool err_open = process->err.source.fd >= 0;
    outlet_resume(&process->out);
    if (err_open)
        outlet_resume(&process->err);
}

static void detach(struct process *process) {
    set_stream(process, NULL);
    resume_output(process);
}

void process_attach(struct process *process, struct stream *stream) {
    struct stream *earlier = process->stream;
    stream->handler = &PROCESS_HANDLER;
    stream->state = process;
    set_stream(process, stream);
    if (earlier)
        stream_error(earlier, "ESTALE", "another stream has attached to the process");
    history_replay(&process->history, stream);
    if (process->ended && process_find_finished(process->agent, process->pid) == process) {
        forget_finished(process);
        tell_result(process);
        process_free(process);
        return;
    }
    resume_output(process);
}

static void has_ended(struct process *process, int status, const struct rusage *used) {
    struct loop *loop = &process->agent->loop;
    process->ended = true;
    process->oom_kills = limits_oom_kills(&process->agent->limits) - process->oom_kills;
    process->status = status;
    process->used = *used;
    process->wall = monotonic_seconds() - process->started;
    loop_disarm(loop, &process->deadline);
    loop_disarm(loop, &process->silence);
    loop_arm(loop, &process->linger, LINGER);
    conclude(process);
}

void processes_reap(struct agent *agent) {
    int status;
    struct rusage used;
    for (pid_t pid; (pid = wait4(-1, &status, WNOHANG, &used)) > 0;) {
        struct process *process = process_find(agent, pid);
        if (process && !process->ended)
            has_ended(process, status, &used);
    }
}

static void on_data(struct stream *stream, const uint8_t *bytes, size_t size) {
    struct process *process = stream->state;
    inlet_data(&process->in, bytes, size);
}

static void on_end(struct stream *stream) {
    struct process *process = stream->state;
    /* A terminal has no end to be closed; its line discipline takes Ctrl-D for one. */
    if (process->terminal)
        inlet_type(&process->in, "\x04", 1);
    else
        inlet_end(&process->in);
}

static void on_call(struct stream *stream, struct mp_value body) {
    struct process *process = stream->state;
    struct mp_value value, item;
    struct mp_iterator sizes;
    int64_t number;
    uint64_t rows, columns;
    if (mp_get(body, "signal", &value) && mp_int(value, &number) && number > 0 && number < NSIG && !process->ended)
        kill(-process->pid, (int)number);
    if (process->terminal && mp_get(body, "resize", &value) && mp_iterate_array(value, &sizes) && mp_next(&sizes, &item) && mp_uint(item, &rows) &&
        mp_next(&sizes, &item) && mp_uint(item, &columns)) {
        struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};
        ioctl(process->out.source.fd, TIOCSWINSZ, &size);
    }
}

static void on_pump(struct stream *stream) {
    resume_output(stream->state);
}

/* From now on it lives without a stream, and what it prints is kept for whoever attaches. */
static void keep(struct process *process) {
    process->keep = true;
    process->out.history = process->err.history = &process->history;
}

static void on_abandon(struct stream *stream) {
    struct process *process = stream->state;
    if (stream->connection->held && !process->keep)
        keep(process);
    bool ours = !process->keep && !process->ended;
    pid_t pid = process->pid;
    detach(process);
    if (ours)
        kill_session(pid);
}

static void on_cancel(struct stream *stream) {
    struct process *process = stream->state;
    if (process->keep) {
        detach(process);
        stream_error(stream, "ECANCELED", "detached from the process, which goes on");
        return;
    }
    if (!process->ended)
        kill_session(process->pid);
    bool err_open = process->err.source.fd >= 0;
    outlet_stop_waiting(&process->out);
    if (err_open)
        outlet_stop_waiting(&process->err);
}

const struct stream_handler PROCESS_HANDLER = {
    .data = on_data, .end = on_end, .call = on_call, .pump = on_pump, .cancel = on_cancel, .abandon = on_abandon,
};
