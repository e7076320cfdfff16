#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "exec.h"
#include "operations.h"
#include "process.h"
#include "procfs.h"

/* Bytes that all processes together may take in one listing, below the limit of a frame. */
enum { LISTING_ROOM = 900000, ENTRY_OVERHEAD = 256 };

static struct process *find_or_fail(struct stream *stream, struct mp_value body, bool finished_too) {
    int64_t pid = 0;
    if (!take_int(stream, body, "pid", true, 1, INT32_MAX, &pid))
        return NULL;
    struct process *process = process_find(stream_agent(stream), (pid_t)pid);
    if (!process && finished_too)
        process = process_find_finished(stream_agent(stream), (pid_t)pid);
    if (!process)
        stream_fail(stream, ESRCH, "process %lld", (long long)pid);
    return process;
}

void operation_attach(struct stream *stream, struct mp_value body) {
    struct process *process = find_or_fail(stream, body, true);
    if (!process)
        return;
    if (!process->keep) {
        stream_fail(stream, EINVAL, "process %d was not started with 'keep'", (int)process->pid);
        return;
    }
    tell_started(stream, process->pid);
    process_attach(process, stream);
}

/* A command that has ended still names the session of what it left behind. */
static void end_session(struct stream *stream, struct mp_value body) {
    int64_t leader = 0;
    if (!take_int(stream, body, "pid", true, 2, INT32_MAX, &leader))
        return;
    kill_session((pid_t)leader);
    stream_done(stream);
}

void operation_signal(struct stream *stream, struct mp_value body) {
    int64_t number = 0;
    bool session = false;
    if (!take_int(stream, body, "signal", true, 0, NSIG - 1, &number) || !take_flag(stream, body, "session", &session))
        return;
    if (session && number == SIGKILL) {
        end_session(stream, body);
        return;
    }
    if (session) {
        stream_fail(stream, EINVAL, "a session can only be sent signal %d", SIGKILL);
        return;
    }
    struct process *process = find_or_fail(stream, body, false);
    if (!process)
        return;
    if (kill(-process->pid, (int)number) == 0)
        stream_done(stream);
    else
        stream_fail(stream, errno, "process group %d", (int)process->pid);
}

static void write_argv(struct buffer *out, const struct strings *argv, size_t room) {
    size_t shown = 0;
    for (; shown < argv->count && strlen(argv->items[shown]) + 8 <= room; shown++)
        room -= strlen(argv->items[shown]) + 8;
    mp_write_str(out, "argv");
    mp_write_array(out, (uint32_t)shown);
    for (size_t i = 0; i < shown; i++)
        mp_write_text(out, argv->items[i], strlen(argv->items[i]));
}

static void write_process(struct buffer *out, const struct process *process, size_t room) {
    mp_write_map(out, 7);
    mp_write_str(out, "pid");
    mp_write_int(out, process->pid);
    write_argv(out, &process->argv, room);
    mp_write_text_pair(out, "cwd", strlen(process->cwd) <= room ? process->cwd : NULL);
    mp_write_text_pair(out, "user", process->user);
    mp_write_text_pair(out, "tag", process->tag && strlen(process->tag) <= room ? process->tag : NULL);
    mp_write_str(out, "pty");
    mp_write_bool(out, process->terminal);
    mp_write_str(out, "started");
    mp_write_double(out, process->started_at);
}

void operation_processes(struct stream *stream, struct mp_value body) {
    (void)body;
    const struct agent *agent = stream_agent(stream);
    uint32_t count = 0;
    for (size_t i = 0; i < PROCESS_BUCKETS; i++)
        for (const struct process *process = agent->processes[i]; process; process = process->next)
            count += !process->ended;
    size_t share = LISTING_ROOM / (count ? count : 1);
    size_t room = share > ENTRY_OVERHEAD ? (share - ENTRY_OVERHEAD) / 3 : 0;
    size_t mark;
    struct buffer *out = stream_begin(stream, FRAME_RESULT, &mark);
    mp_write_map(out, 1);
    mp_write_str(out, "processes");
    mp_write_array(out, count);
    for (size_t i = 0; i < PROCESS_BUCKETS; i++)
        for (const struct process *process = agent->processes[i]; process; process = process->next)
            if (!process->ended)
                write_process(out, process, room);
    stream_finish(stream, mark);
}
