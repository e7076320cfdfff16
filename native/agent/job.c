#include "job.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent.h"
#include "errno_name.h"
#include "pipes.h"

enum { FLUSH_AT = 32768, OLD_KERNEL_DESCRIPTORS = 65536 };

struct job {
    struct job *next;
    struct agent *agent;
    struct stream *stream;
    pid_t pid;
    struct source source; /* the frames of the copy */
    struct inlet in;
    struct buffer buffer;
};

void job_flush(struct job_output *output, bool now) {
    struct buffer *buffer = &output->buffer;
    if (buffer->failed)
        _exit(1);
    if (!now && buffer->length < FLUSH_AT)
        return;
    while (buffer->length) {
        ssize_t size = write(output->out, buffer_head(buffer), buffer->length);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0)
            _exit(1);
        buffer_consume(buffer, (size_t)size);
    }
}

void job_data(struct job_output *output, const void *bytes, size_t size) {
    frame_data(&output->buffer, output->stream, FRAME_DATA, bytes, size);
    job_flush(output, false);
}

struct buffer *job_begin(struct job_output *output, enum frame_kind kind, size_t *mark) {
    *mark = frame_begin(&output->buffer, output->stream, kind);
    return &output->buffer;
}

void job_commit(struct job_output *output, size_t mark) {
    frame_end(&output->buffer, mark);
    job_flush(output, false);
}

void job_finish(struct job_output *output, size_t mark) {
    frame_end(&output->buffer, mark);
    job_flush(output, true);
    _exit(0);
}

static _Noreturn void finish_with_error(struct job_output *output, const char *code, const char *message) {
    size_t mark;
    struct buffer *out = job_begin(output, FRAME_ERROR, &mark);
    mp_write_map(out, 2);
    mp_write_str(out, "code");
    mp_write_str(out, code);
    mp_write_str(out, "message");
    mp_write_message(out, message);
    job_finish(output, mark);
}

void job_error(struct job_output *output, const char *code, const char *format, ...) {
    char message[768];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    finish_with_error(output, code, message);
}

void job_fail(struct job_output *output, int number, const char *format, ...) {
    char message[768];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message - 128, format, arguments);
    va_end(arguments);
    size_t at = strlen(message);
    snprintf(message + at, sizeof message - at, ": %s", strerror(number));
    finish_with_error(output, errno_name(number), message);
}

static void job_free(struct job *job) {
    struct job **link = &job->agent->jobs;
    while (*link != job)
        link = &(*link)->next;
    *link = job->next;
    job->in.stream = NULL;
    inlet_close(&job->in);
    loop_close(&job->agent->loop, &job->source);
    buffer_release(&job->buffer);
    free(job);
}

enum relayed { RELAY_STARVED, RELAY_BLOCKED, RELAY_SENT, RELAY_OVER };

/* Passes on one frame if there is a whole one and it may be sent now. OVER: it was the last; job and stream are gone. */
static enum relayed relay(struct job *job) {
    struct frame frame;
    size_t used;
    struct mp_bytes bytes = {0};
    struct stream *stream = job->stream;
    struct buffer *out = &stream->connection->out;
    if (frame_parse(buffer_head(&job->buffer), job->buffer.length, &frame, &used) != FRAME_COMPLETE)
        return RELAY_STARVED;
    if (frame.kind == FRAME_DATA)
        mp_bytes(frame.body, &bytes);
    if (out->length >= SEND_HIGH || bytes.size > stream->credit)
        return RELAY_BLOCKED;
    stream->credit -= bytes.size;
    buffer_append(out, buffer_head(&job->buffer), used);
    if (out->failed)
        connection_fail(stream->connection);
    bool last = frame.kind == FRAME_RESULT || frame.kind == FRAME_ERROR;
    buffer_consume(&job->buffer, used);
    if (!last)
        return RELAY_SENT;
    job_free(job);
    stream_drop(stream);
    return RELAY_OVER;
}

static void relay_all(struct job *job) {
    enum relayed result;
    while ((result = relay(job)) == RELAY_SENT)
        ;
    if (result == RELAY_OVER)
        return;
    loop_watch(&job->agent->loop, &job->source, result == RELAY_STARVED ? EPOLLIN : 0);
    if (result == RELAY_BLOCKED)
        stream_wait(job->stream);
}

static void ready(struct source *source, uint32_t events) {
    (void)events;
    struct job *job = container_of(source, struct job, source);
    uint8_t *room = buffer_reserve(&job->buffer, SCRATCH_SIZE);
    ssize_t size = room ? read(source->fd, room, SCRATCH_SIZE) : 0;
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (size > 0) {
        buffer_commit(&job->buffer, (size_t)size);
        relay_all(job);
        return;
    }
    struct stream *stream = job->stream;
    job_free(job);
    stream_fail(stream, EIO, "the helper process ended without an answer");
}

static void on_data(struct stream *stream, const uint8_t *bytes, size_t size) {
    struct job *job = stream->state;
    inlet_data(&job->in, bytes, size);
}

static void on_end(struct stream *stream) {
    struct job *job = stream->state;
    inlet_end(&job->in);
}

static void on_pump(struct stream *stream) { relay_all(stream->state); }

static void on_abandon(struct stream *stream) {
    struct job *job = stream->state;
    kill(job->pid, SIGKILL);
    job_free(job);
}

static void on_cancel(struct stream *stream) {
    on_abandon(stream);
    stream_error(stream, "ECANCELED", "cancelled");
}

static const struct stream_handler JOB_HANDLER = {
    .data = on_data, .end = on_end, .pump = on_pump, .cancel = on_cancel, .abandon = on_abandon};

static bool close_range_of(unsigned first, unsigned last) { return first > last || syscall(SYS_close_range, first, last, 0) == 0; }

/* For kernels without close_range, gVisor's among them: one call for each number there may be takes seconds there. */
static void close_listed(int in, int out) {
    DIR *directory = opendir("/proc/self/fd");
    struct dirent *entry;
    for (int fd = 3; !directory && fd < OLD_KERNEL_DESCRIPTORS; fd++)
        if (fd != in && fd != out)
            close(fd);
    while (directory && (entry = readdir(directory))) {
        int fd = atoi(entry->d_name);
        if (fd > 2 && fd != in && fd != out && fd != dirfd(directory))
            close(fd);
    }
    if (directory)
        closedir(directory);
}

/* The copy keeps its two pipes and the standard streams: a descriptor of the agent's that it held would keep other processes' pipes open. */
static void drop_descriptors(int in, int out) {
    unsigned low = (unsigned)(in < out ? in : out), high = (unsigned)(in < out ? out : in);
    if (in < 0)
        low = high = (unsigned)out;
    if (!close_range_of(high + 1, ~0u))
        close_listed(in, out);
    else if (!close_range_of(3, low - 1) || !close_range_of(low + 1, high - 1))
        _exit(1);
}

static void become_helper(const struct agent *agent, struct job_output *output) {
    sigset_t none;
    sigemptyset(&none);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is an error (EFBIG) to tell */
    drop_descriptors(output->in, output->out);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (agent->oom_protected) {
        int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
        if (fd >= 0 && write(fd, "0", 1) == 1)
            close(fd);
    }
}

static void close_pair(int ends[2]) {
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
}

static void run_helper(struct stream *stream, int in, int out, void (*work)(struct job_output *, void *), void *argument) {
    struct job_output output = {.stream = stream->id, .in = in, .out = out};
    become_helper(stream_agent(stream), &output);
    work(&output, argument);
    _exit(1);
}

void job_start(struct stream *stream, bool takes_data, void (*work)(struct job_output *output, void *argument), void *argument) {
    struct agent *agent = stream_agent(stream);
    int in[2] = {-1, -1}, out[2] = {-1, -1};
    struct job *job = calloc(1, sizeof *job);
    pid_t pid = job && (!takes_data || make_pipe(in, 1)) && make_pipe(out, 0) ? fork() : -1;
    if (pid == 0)
        run_helper(stream, in[0], out[1], work, argument);
    if (pid < 0) {
        int problem = errno;
        close_pair(in);
        close_pair(out);
        free(job);
        stream_fail(stream, problem, "cannot fork a helper");
        return;
    }
    close(out[1]);
    *job = (struct job){.next = agent->jobs, .agent = agent, .stream = stream, .pid = pid, .source = {.fd = out[0], .ready = ready}};
    job->in = (struct inlet){.source = {.fd = -1}, .agent = agent, .stream = stream};
    if (takes_data) {
        close(in[0]);
        inlet_open(&job->in, agent, in[1]);
    }
    agent->jobs = job;
    stream->handler = &JOB_HANDLER;
    stream->state = job;
    loop_watch(&agent->loop, &job->source, EPOLLIN);
}
