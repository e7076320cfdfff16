/* Looking at all processes of the sandbox through /proc, and signalling many of them. */
#ifndef AGENTENV_PROCFS_H
#define AGENTENV_PROCFS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct proc_stat {
    pid_t pid, parent, group, session;
    unsigned long long user_ticks, system_ticks;
    long threads;
    char state;
};

/* Calls `each` for every process of /proc until it answers false; false when /proc cannot be read or holds none. */
bool procfs_each(bool (*each)(const struct proc_stat *stat, void *context), void *context);

/* SIGKILLs a process's group and whatever else is in its session. */
void kill_session(pid_t leader);

/* Signals every process but the agent itself: all of the machine when the agent is PID 1, else its descendants. */
void signal_everybody(bool is_init, int signal);

/* Whether of those nobody runs any more: each is stopped or dead. */
bool everybody_stopped(bool is_init);

/* The memory of the whole machine, and what of it could still be had (bytes); false when /proc does not tell. */
bool procfs_memory(uint64_t *total, uint64_t *available);

#endif
