/* The whole state of the agent; there is one, in main.c, and everything reaches it through its connection. */
#ifndef AGENTENV_AGENT_H
#define AGENTENV_AGENT_H

#include <sys/resource.h>

#include "limits_shown.h"
#include "loop.h"
#include "msgpack.h"
#include "text_list.h"
#include "users.h"

#define AGENT_PROTOCOL 1
#define AGENT_VERSION "0.1.0"

struct connection;
struct stream;
struct process;
struct job;
struct port;

enum { SCRATCH_SIZE = 65536, PROCESS_BUCKETS = 256 };

struct agent {
    struct loop loop;
    struct connection *connections;
    size_t connection_count;
    void (*start_operation)(struct stream *stream, struct mp_value body); /* for each OPEN; main.c says which, since operations stand on streams */
    struct source listener;
    struct timer listen_again; /* after the descriptors ran out */
    struct source signals;
    struct source uevents; /* of a virtual machine with serial ports: new devices; fd -1: not listened for */
    struct source uplink; /* frames of the host's network, where the kernel has none; fd -1: none */
    struct source tap;    /* of this machine's; fd -1: the way is closed */
    struct port *ports;
    struct process *processes[PROCESS_BUCKETS];
    struct process *finished, **finished_end; /* ended `keep` processes whose outcome nobody has fetched */
    size_t finished_count;
    struct job *jobs;
    struct strings env; /* the default environment, NAME=VALUE */
    char *user;         /* NULL: root */
    struct user_memory users;
    char *cwd;
    struct limits limits;
    struct rlimit original_files; /* what children get back; the agent raises its own */
    bool is_init;                 /* PID 1 */
    bool is_vm;                   /* and of a machine with a kernel of its own */
    int upper;                    /* the file system of a virtual machine's writable files; -1: none */
    bool oom_protected;           /* children must reset their oom_score_adj */
    double started;
    struct timer grace;           /* until SIGKILL, once a shutdown has begun */
    bool shutting_down;
    struct timer thaws; /* the end of a snapshot that the host never ended */
    bool frozen;        /* a snapshot is being taken */
    uint8_t scratch[SCRATCH_SIZE]; /* where every read from a child lands before it is framed */
};

#endif
