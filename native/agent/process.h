/* The processes that `exec` started, from their start until somebody has been told how they ended. */
#ifndef AGENTENV_PROCESS_H
#define AGENTENV_PROCESS_H

#include <sys/resource.h>
#include <sys/types.h>

#include "agent.h"
#include "history.h"
#include "pipes.h"

struct process {
    struct process *next; /* in its bucket, or among the finished */
    struct agent *agent;
    struct stream *stream; /* who is told; NULL: nobody now */
    pid_t pid;
    bool keep, terminal;
    struct strings argv; /* cut to what a listing shows */
    char *cwd, *user, *tag;
    double started_at;   /* unix time */
    double started, wall; /* monotonic; how long it ran */
    struct outlet out, err;
    struct inlet in;
    struct history history;
    struct timer deadline, silence, linger;
    double idle_timeout;
    const char *timed_out; /* NULL, "wall" or "idle" */
    bool ended;
    int status;
    struct rusage used;
    uint64_t oom_kills; /* of the whole machine: how many there had been at its start, and once it has ended, how many there were meanwhile */
};

extern const struct stream_handler PROCESS_HANDLER;

/* Enters the process in the table; from here on the table owns it. */
void process_add(struct process *process);

struct process *process_find(const struct agent *agent, pid_t pid);

/* An ended `keep` process whose outcome waits to be fetched. */
struct process *process_find_finished(const struct agent *agent, pid_t pid);

/* Makes `stream` the one that hears of the process: replays the history and goes on live. */
void process_attach(struct process *process, struct stream *stream);

/* Collects every child that ended: ours and orphans alike. */
void processes_reap(struct agent *agent);

/* Starts the timeouts (seconds; 0: none). */
void process_limit_time(struct process *process, double wall, double idle);

void process_free(struct process *process);

#endif
