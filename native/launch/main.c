/*
 * agentenv-launch --control FD --agent PATH --filter FD [--owner PID] [--users START:COUNT --groups START:COUNT] [--sweep PATH]…
 * agentenv-launch --probe DIRECTORY [...]: tries every step that a start needs in an empty directory and prints what this machine allows.
 * agentenv-launch warden, agentenv-launch monitor: see monitor.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon.h"
#include "kernel.h"

struct options {
    int control, filter;
    pid_t owner;
    const char *agent, *probe;
    struct id_ranges ranges;
    const char *sweeps[GROUPS_MAX];
    size_t sweep_count;
};

static struct options read_options(int count, char **words) {
    static const struct option known[] = {
        {"control", required_argument, NULL, 'c'}, {"agent", required_argument, NULL, 'a'},  {"filter", required_argument, NULL, 'f'},
        {"owner", required_argument, NULL, 'o'},   {"users", required_argument, NULL, 'u'},  {"groups", required_argument, NULL, 'g'},
        {"probe", required_argument, NULL, 'p'},   {"sweep", required_argument, NULL, 's'},  {NULL, 0, NULL, 0},
    };
    struct options options = {.control = -1, .filter = -1};
    for (int letter; (letter = getopt_long(count, words, "", known, NULL)) != -1;) {
        switch (letter) {
        case 'c': options.control = atoi(optarg); break;
        case 'f': options.filter = atoi(optarg); break;
        case 'o': options.owner = (pid_t)atoi(optarg); break;
        case 'a': options.agent = optarg; break;
        case 'p': options.probe = optarg; break;
        case 'u': options.ranges.users = optarg; break;
        case 'g': options.ranges.groups = optarg; break;
        case 's':
            if (options.sweep_count < GROUPS_MAX) options.sweeps[options.sweep_count++] = optarg;
            break;
        default: exit(2);
        }
    }
    return options;
}

/* Whether this process may mount and make namespaces as it is. */
static bool is_privileged(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {0};
    return syscall(SYS_capget, &header, data) == 0 && (data[0].effective >> CAP_SYS_ADMIN & 1);
}

/* Out of the way of the low numbers that an agent's descriptors are given. */
static int raise_descriptor(int descriptor) {
    int high = descriptor < 0 ? -1 : fcntl(descriptor, F_DUPFD_CLOEXEC, 64);
    if (high >= 0) close(descriptor);
    return high;
}

/* Takes up the daemon's post: its namespaces, the sealed agent, the stem. Returns NULL or what failed, errno set. */
static const char *set_up(struct host *host, const struct options *options) {
    host->filter = raise_descriptor(options->filter);
    if (host->filter < 0) return "keeping the seccomp program";
    host->landlock = (int)syscall(NR_LANDLOCK_CREATE_RULESET, NULL, 0, 1);
    if (host->landlock < 0) host->landlock = 0;
    find_cores(host);
    host->agent = raise_descriptor(seal_file(options->agent, "agentenv-agent"));
    if (host->agent < 0) return "reading the agent";
    if (!is_privileged()) {
        host->user_namespace = true;
        const char *problem = enter_user_namespace(options->ranges, &host->many_ids);
        if (problem != NULL) return problem;
    }
    host->full_proc = can_mount_proc();
    find_masks(host);
    host->looks = raise_descriptor(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    host->self = raise_descriptor(pidfd_open(getpid()));
    if (host->self < 0) return "opening a pidfd (needs Linux 5.3)";
    const char *problem = build_stem(host);
    host->stem = raise_descriptor(host->stem);
    return problem != NULL ? problem : fresh_network();
}

static void prepare_signals(void) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, SIG_IGN); /* a terminal's Ctrl-C is the owner's to handle */
    signal(SIGTERM, SIG_DFL);
}

/* Receives one request with its descriptors; false when the owner has closed its end. */
static bool receive(struct daemon *daemon, char *message, ssize_t *size, int descriptors[DESCRIPTORS_MAX], size_t *count) {
    union {
        char bytes[CMSG_SPACE(sizeof(int) * DESCRIPTORS_MAX)];
        struct cmsghdr align;
    } space = {0};
    struct iovec content = {.iov_base = message, .iov_len = MESSAGE_MAX};
    struct msghdr header = {.msg_iov = &content, .msg_iovlen = 1, .msg_control = space.bytes, .msg_controllen = sizeof space.bytes};
    do *size = recvmsg(daemon->control, &header, MSG_CMSG_CLOEXEC);
    while (*size < 0 && errno == EINTR);
    *count = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&header); part != NULL; part = CMSG_NXTHDR(&header, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
        *count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(descriptors, CMSG_DATA(part), *count * sizeof(int));
    }
    return *size > 0;
}

static void serve(struct daemon *daemon) {
    static char message[MESSAGE_MAX];
    static struct request request;
    int descriptors[DESCRIPTORS_MAX];
    size_t count;
    ssize_t size;
    if (!receive(daemon, message, &size, descriptors, &count)) end_all(daemon);
    uint64_t asked = now_ns();
    const char *problem = parse_request(message, (size_t)size, &request);
    if (count > 0) request.listen = descriptors[0];
    if (count > 1) request.log = descriptors[1];
    if (problem != NULL) tell(daemon, -1, "event=failed\nid=%s\nstage=request\nerrno=%d\nwhat=%s", request.id != NULL ? request.id : "", EINVAL, problem);
    else if (strcmp(request.operation, "affinity") == 0) change_cores(daemon, &request);
    else if (strcmp(request.operation, "kill") == 0) kill_sandbox(daemon, &request);
    else if (strcmp(request.operation, "launch") == 0) launch(daemon, &request, asked);
    else if (strcmp(request.operation, "close") == 0) {
        daemon->sweep_count = 0; /* the owner lives: what it made is its own to remove */
        end_all(daemon);
    } else tell(daemon, -1, "event=failed\nid=%s\nstage=request\nerrno=%d\nwhat=unknown op", request.id, EINVAL);
    for (size_t i = 0; i < count; i++) close(descriptors[i]);
}

static void dispatch(struct daemon *daemon, enum source *source) {
    switch (*source) {
    case SOURCE_CONTROL: serve(daemon); break;
    case SOURCE_OWNER: end_all(daemon);
    case SOURCE_LOOKS: take_looks(daemon); break;
    case SOURCE_RESTED: take_looks_again(daemon); break;
    case SOURCE_REPORT: report_ready(daemon, (struct sandbox *)(void *)((char *)source - offsetof(struct sandbox, report_source))); break;
    case SOURCE_PROCESS: process_ended(daemon, (struct sandbox *)(void *)((char *)source - offsetof(struct sandbox, process_source))); break;
    }
}

static void watch_owner(struct daemon *daemon) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &daemon->control_source};
    daemon->control_source = SOURCE_CONTROL;
    daemon->owner_source = SOURCE_OWNER;
    daemon->events = epoll_create1(EPOLL_CLOEXEC);
    if (daemon->events < 0 || epoll_ctl(daemon->events, EPOLL_CTL_ADD, daemon->control, &event) < 0) die("watching the owner");
    open_looks(daemon);
    event.data.ptr = &daemon->owner_source;
    if (daemon->owner >= 0 && epoll_ctl(daemon->events, EPOLL_CTL_ADD, daemon->owner, &event) < 0) die("watching the owner");
}

static bool step(struct daemon *daemon, int wait) {
    /* One event at a time: handling one may free the sandbox that another belongs to. */
    struct epoll_event event;
    int ready = epoll_wait(daemon->events, &event, 1, wait);
    if (ready < 0 && errno != EINTR) die("waiting");
    if (ready > 0) dispatch(daemon, event.data.ptr);
    if (daemon->deserted) end_all(daemon);
    return ready > 0;
}

/* With nothing else to do, the network of the next sandbox is made; where that fails, its launch tries again and says why. */
static _Noreturn void run(struct daemon *daemon) {
    for (bool may_prepare = true;;) {
        bool prepare = daemon->network_used && may_prepare;
        if (step(daemon, prepare ? 0 : -1)) may_prepare = true;
        else if (prepare && (may_prepare = fresh_network() == NULL)) daemon->network_used = false;
    }
}

/* One record a line, an empty line after each message. */
static int print_answers(int answers) {
    char text[4096];
    for (ssize_t size; (size = recv(answers, text, sizeof text, MSG_DONTWAIT)) > 0;) {
        for (ssize_t i = 0; i < size; i++) putchar(text[i] == '\0' ? '\n' : text[i]);
        putchar('\n');
    }
    return 0;
}

/* Starts a sandbox whose agent is this very program asked for nothing, in DIRECTORY/{lower,upper,work}, and prints what came of it. */
static int probe(struct daemon *daemon, const char *directory, int answers) {
    char lower[4096], upper[4096], work[4096];
    static struct request request;
    const char *layer = lower;
    snprintf(lower, sizeof lower, "%s/lower", directory);
    snprintf(upper, sizeof upper, "%s/upper", directory);
    snprintf(work, sizeof work, "%s/work", directory);
    request = (struct request){.id = "probe", .tree_count = 1, .argument_count = 1, .listen = -1, .log = STDERR_FILENO};
    request.trees[0] = (struct tree){.target = "/", .upper = upper, .work = work, .lowers = &layer, .lower_count = 1};
    request.arguments[0] = "agentenv-launch";
    launch(daemon, &request, now_ns());
    while (daemon->sandboxes != NULL) step(daemon, -1);
    return print_answers(answers);
}

int main(int count, char **words) {
    if (count > 1 && strcmp(words[1], "warden") == 0) return be_warden();
    if (count > 1 && strcmp(words[1], "monitor") == 0) return become_monitor(count - 1, words + 1);
    static struct daemon daemon;
    struct options options = read_options(count, words);
    int pair[2];
    if (options.agent == NULL) return 0;
    if (options.probe != NULL && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) die("making a socket");
    daemon.control = raise_descriptor(options.probe != NULL ? pair[0] : options.control);
    daemon.owner = options.owner > 0 ? pidfd_open(options.owner) : -1;
    memcpy(daemon.sweeps, options.sweeps, sizeof daemon.sweeps);
    daemon.sweep_count = options.sweep_count;
    prepare_signals();
    umask(0);
    const char *problem = set_up(&daemon.host, &options);
    if (problem != NULL) {
        tell(&daemon, -1, "event=unusable\nuser_namespace=%d\nerrno=%d\nwhat=%s", daemon.host.user_namespace, errno, problem);
        if (options.probe == NULL) return 1;
    } else
        tell(&daemon, -1, "event=ready\nuser_namespace=%d\nmany_ids=%d\nlandlock=%d\nfull_proc=%d", daemon.host.user_namespace, daemon.host.many_ids,
             daemon.host.landlock, daemon.host.full_proc);
    if (options.probe != NULL && problem != NULL) return print_answers(pair[1]);
    if (daemon.deserted) end_all(&daemon);
    watch_owner(&daemon);
    if (options.probe != NULL) return probe(&daemon, options.probe, pair[1]);
    run(&daemon);
}
