/*
 * agentenv-launch: one small daemon per owner process that starts sandboxes.
 *
 * The owner (a Python process) hands it one end of a SOCK_SEQPACKET pair. Each request is one message of NUL-ended `key=value` records
 * (request.c lists them) with descriptors attached; each sandbox is a process made by clone3 that builds its own world (sandbox.c) and becomes the
 * agent. When the owner's end closes, or the owner ends, every sandbox is killed and the daemon exits.
 */
#ifndef AGENTENV_LAUNCH_H
#define AGENTENV_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    MESSAGE_MAX = 1 << 18, /* bytes of one request */
    TREES_MAX = 64,
    LOWERS_MAX = 2048, /* of all trees of one sandbox together */
    GROUPS_MAX = 24,
    ARGUMENTS_MAX = 512,
    DESCRIPTORS_MAX = 4,
    CPUS_MAX = 1024,
    MASKS_MAX = 16,
};

/* The descriptors that the agent is given; the owner writes these numbers into the agent's arguments. */
enum { AGENT_STDERR = 2, AGENT_LISTEN = 3, AGENT_MEMORY_USAGE = 4, AGENT_CPUINFO = 5, AGENT_OOM_KILLS = 6, AGENT_FIRST_FREE = 7 };

/* The stages of a start in order; the names are part of what an owner is told. */
enum stage { STAGE_CGROUP, STAGE_NETWORK, STAGE_FILES, STAGE_ROOT, STAGE_MASK, STAGE_CONFINE, STAGE_EXEC, STAGE_COUNT };
extern const char *const stage_names[STAGE_COUNT];

struct tree {
    const char *target, *upper, *work;
    const char **lowers; /* topmost first */
    size_t lower_count;
};

struct request {
    const char *operation, *id, *hostname, *netns, *memory_file, *oom_file;
    const char *into; /* directory of the version 2 cgroup that clone3 enters */
    struct tree trees[TREES_MAX];
    size_t tree_count;
    const char *lowers[LOWERS_MAX];
    size_t lower_count;
    const char *groups[GROUPS_MAX]; /* files of version 1 cgroups to write 0 into */
    size_t group_count;
    const char *arguments[ARGUMENTS_MAX + 1]; /* of the agent, its own name first */
    size_t argument_count;
    unsigned cpus; /* how many cores the sandbox may use; 0: all */
    bool show_memory; /* the agent keeps a meminfo of its own that goes over the kernel's */
    uint64_t tmp_bytes, shm_bytes, run_bytes;
    int listen, log; /* descriptors that came with the message, -1 when missing */
};

/* What a child writes down the report pipe: once before it becomes the agent, or once when a stage failed. */
struct report {
    int error; /* errno, 0: all well so far */
    int looks; /* the watch on its meminfo, 0: none */
    enum stage stage; /* the last one begun */
    uint64_t ended[STAGE_COUNT]; /* CLOCK_MONOTONIC ns at which each stage had ended */
    char what[256]; /* what was being done when it failed */
};

/* The facts and descriptors that all sandboxes of one daemon share. */
struct host {
    bool user_namespace; /* the daemon runs in a user namespace of its own: the caller is unprivileged */
    bool many_ids; /* that namespace maps a range of ids and not just one */
    bool full_proc; /* a procfs can be mounted; else the stem has a reduced one (reduced_proc.c) */
    int landlock; /* ABI version, 0: none */
    int agent; /* sealed memfd */
    int filter; /* memfd with the seccomp program, -1: none */
    int stem; /* mount namespace that sandboxes' are copied from: an empty root with /dev and /sys ready */
    int self; /* pidfd of the daemon */
    int looks; /* inotify: a sandbox's meminfo has been read; -1: none */
    const char *hidden[MASKS_MAX], *frozen[MASKS_MAX]; /* paths below /proc */
    size_t hidden_count, frozen_count;
    size_t core_count;
    uint16_t cores[CPUS_MAX]; /* the cores that this daemon may use */
};

/* util.c */
uint64_t now_ns(void);
_Noreturn void die(const char *what);
int write_text(const char *path, const char *text);
int seal_file(const char *path, const char *name);
bool read_number(const char *text, uint64_t *value);

/* request.c: NULL when well-formed, else what is wrong with it. The request points into `message`, which must stay. */
const char *parse_request(char *message, size_t size, struct request *request);

/* identity.c */
struct id_ranges { const char *users, *groups; }; /* "START:COUNT" or NULL */
const char *enter_user_namespace(struct id_ranges ranges, bool *many_ids);

/* stem.c: builds the stem namespace; returns NULL or what failed, errno set. */
const char *build_stem(struct host *host);

/* reduced_proc.c: fills the current directory; -1 with errno. */
int fill_reduced_proc(int host_proc);
bool can_mount_proc(void);

/* network.c: moves the daemon itself into a fresh network namespace with its loopback up. */
const char *fresh_network(void);

/* mounts.c: each returns a detached mount's descriptor or -1 with errno; `what` says what was tried. */
int overlay_mount(const struct tree *tree, bool user_namespace);
int plain_mount(const char *type, const char *const options[][2], unsigned attributes);
int tmpfs_mount(uint64_t bytes, const char *mode, unsigned attributes);
int attach(int mount, const char *target);
int bind_over(int directory, const char *source, const char *target, unsigned attributes);

/* mask.c */
void find_masks(struct host *host);
const char *hide_kernel(const struct host *host);

/* confine.c: each returns NULL or what failed, errno set. */
const char *set_limits(void);
const char *lock_down(const struct host *host);

/* monitor.c: what else this program can be. */
int be_warden(void);
int become_monitor(int count, char **words);

/* sandbox.c: runs in the cloned child, never returns. */
_Noreturn void become_sandbox(const struct host *host, const struct request *request, int report_pipe);

#endif
