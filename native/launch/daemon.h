/* The daemon's books: which sandboxes it has started, and how it speaks to its owner. */
#ifndef AGENTENV_DAEMON_H
#define AGENTENV_DAEMON_H

#include "launch.h"

enum source { SOURCE_CONTROL, SOURCE_OWNER, SOURCE_REPORT, SOURCE_PROCESS, SOURCE_LOOKS, SOURCE_RESTED };

struct sandbox {
    enum source report_source, process_source; /* what epoll hands back: the address of the one that became ready */
    struct sandbox *next;
    char id[128];
    pid_t pid;
    int pidfd, report_pipe; /* report_pipe is -1 once the start is settled */
    uint64_t asked, cloned; /* ns */
    int looks; /* which watch of `host.looks` is on its meminfo; 0: none */
    bool looked_at; /* in the batch of looks that is being gone through */
    unsigned core_count;
    uint16_t *cores;
};

struct daemon {
    struct host host;
    int control, owner, events;
    enum source control_source, owner_source, looks_source, rested_source;
    int rest; /* timerfd: until the next looks are taken; -1: there are none to take */
    struct sandbox *sandboxes;
    unsigned load[CPUS_MAX]; /* sandboxes pinned to each core */
    const char *sweeps[GROUPS_MAX]; /* beginnings of the paths of all cgroups that this owner may have made */
    size_t sweep_count;
    bool deserted;           /* nobody listens any more */
    bool network_used;       /* the namespace it stands in belongs to a sandbox by now */
};

/* replies.c: records to the owner, at most one descriptor with them. */
void tell(struct daemon *daemon, int descriptor, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* sandboxes.c */
void launch(struct daemon *daemon, struct request *request, uint64_t asked);
void change_cores(struct daemon *daemon, const struct request *request);
void kill_sandbox(struct daemon *daemon, const struct request *request);
void report_ready(struct daemon *daemon, struct sandbox *sandbox);
void process_ended(struct daemon *daemon, struct sandbox *sandbox);
_Noreturn void end_all(struct daemon *daemon);

/* looks.c: who reads the memory that its sandbox is shown. */
void open_looks(struct daemon *daemon);
void take_looks(struct daemon *daemon);
void take_looks_again(struct daemon *daemon);

/* sweep.c: removes every empty directory whose path begins so. */
void sweep(const char *beginning);

/* cores.c */
uint16_t *choose_cores(struct daemon *daemon, unsigned count);
int use_cores(pid_t process, const uint16_t *cores, unsigned count);
void release_cores(struct daemon *daemon, const uint16_t *cores, unsigned count);
void find_cores(struct host *host);

#endif
