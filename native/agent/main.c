/* agentenv-agent: PID 1 of a sandbox. See docs/agent-protocol.md. */
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent.h"
#include "connection.h"
#include "machine.h"
#include "operations.h"
#include "options.h"
#include "pipes.h"
#include "process.h"
#include "procfs.h"
#include "vm.h"

static const double ACCEPT_AGAIN = 0.05;
static const double SIGTERM_GRACE = 5.0;
enum { USAGE_ERROR = 2, OLD_KERNEL_DESCRIPTORS = 1024, SIGNALS_AT_ONCE = 8 };

static void signalled(struct source *source, uint32_t events) {
    (void)events;
    struct agent *agent = container_of(source, struct agent, signals);
    struct signalfd_siginfo received[SIGNALS_AT_ONCE];
    ssize_t size = read(source->fd, received, sizeof received);
    for (ssize_t i = 0; i < size / (ssize_t)sizeof *received; i++)
        if (received[i].ssi_signo == SIGTERM || received[i].ssi_signo == SIGINT)
            machine_shut_down(agent, SIGTERM_GRACE);
        else if (received[i].ssi_signo == SIGUSR1)
            limits_looked_at(agent);
    processes_reap(agent);
}

static void accept_connections(struct source *source, uint32_t events) {
    (void)events;
    struct agent *agent = container_of(source, struct agent, listener);
    while (agent->connection_count < CONNECTION_LIMIT) {
        int fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            connection_open(agent, fd, false);
        } else if (errno != EINTR && errno != ECONNABORTED) {
            if (errno == EAGAIN)
                return;
            break;
        }
    }
    /* Out of descriptors, or of connections: those that wait stay in the kernel's queue for a while. */
    loop_watch(&agent->loop, source, 0);
    loop_arm(&agent->loop, &agent->listen_again, ACCEPT_AGAIN);
}

static void listen_again(struct timer *timer) {
    struct agent *agent = container_of(timer, struct agent, listen_again);
    loop_watch(&agent->loop, &agent->listener, EPOLLIN);
}

/* Descriptors 0-2 must be taken, else a pipe would get such a number and be overwritten in a child. All others are the agent's alone. */
static void settle_descriptors(void) {
    int fd;
    do
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
    if (syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC) == 0)
        return;
    for (fd = 3; fd < OLD_KERNEL_DESCRIPTORS; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* A stream that came as a standard stream moves away from there, where programs that the agent runs would find it. */
static bool leave_standard_streams(int *stream) {
    if (*stream < 0 || *stream > STDERR_FILENO)
        return true;
    int high = fcntl(*stream, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), null = open("/dev/null", O_RDWR | O_CLOEXEC);
    bool moved = high >= 0 && null >= 0 && dup2(null, *stream) >= 0;
    if (null >= 0)
        close(null);
    *stream = high;
    return moved;
}

static bool block_signals(struct agent *agent) {
    sigset_t all, some;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&some);
    sigaddset(&some, SIGCHLD);
    sigaddset(&some, SIGTERM);
    sigaddset(&some, SIGINT);
    sigaddset(&some, SIGUSR1);
    agent->signals = (struct source){.fd = signalfd(-1, &some, SFD_CLOEXEC | SFD_NONBLOCK), .ready = signalled};
    return agent->signals.fd >= 0 && loop_watch(&agent->loop, &agent->signals, EPOLLIN);
}

static bool is_oom_protected(void) {
    char text[16] = "";
    int fd = open("/proc/self/oom_score_adj", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool known = read(fd, text, sizeof text - 1) > 0;
    close(fd);
    return known && atoi(text) < 0;
}

static void protect_from_oom(struct agent *agent) {
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (write(fd, "-1000", 5) < 0)
            errno = 0; /* an unprivileged agent is killed like any other process */
        close(fd);
    }
    agent->oom_protected = is_oom_protected();
}

static void raise_file_limit(struct agent *agent) {
    getrlimit(RLIMIT_NOFILE, &agent->original_files);
    struct rlimit raised = {agent->original_files.rlim_max, agent->original_files.rlim_max};
    setrlimit(RLIMIT_NOFILE, &raised);
}

static bool start(struct agent *agent, struct options *options) {
    settle_descriptors();
    if (!leave_standard_streams(&options->stream) || !leave_standard_streams(&agent->uplink.fd) || !loop_init(&agent->loop) || !block_signals(agent))
        return false;
    agent->started = agent->loop.now;
    agent->is_init = getpid() == 1;
    agent->finished_end = &agent->finished;
    agent->start_operation = operation_start;
    if (!agent->is_init)
        prctl(PR_SET_CHILD_SUBREAPER, 1);
    /* Root of the sandbox, which lacks CAP_SYS_PTRACE, can then neither trace the agent nor look at its descriptors through /proc. */
    prctl(PR_SET_DUMPABLE, 0);
    if (options->hostname && sethostname(options->hostname, strlen(options->hostname)) != 0)
        fprintf(stderr, "agentenv-agent: cannot set the hostname: %s\n", strerror(errno));
    raise_file_limit(agent);
    protect_from_oom(agent);
    limits_start(agent);
    if (options->listener >= 0) {
        set_nonblocking(options->listener, true);
        agent->listener = (struct source){.fd = options->listener, .ready = accept_connections};
        agent->listen_again.fire = listen_again;
        if (!loop_watch(&agent->loop, &agent->listener, EPOLLIN))
            return false;
    }
    if (!vm_serve(agent))
        return false;
    return options->stream < 0 || (set_nonblocking(options->stream, true) && connection_open(agent, options->stream, true));
}

int main(int count, char **arguments) {
    static struct agent agent;
    struct options options;
    options_defaults(&options, &agent);
    if (vm_is_init(count, arguments))
        vm_boot(&agent, &options);
    else if (!options_read(&options, &agent, count, arguments))
        return USAGE_ERROR;
    umask(022);
    if (chdir("/") != 0 || !start(&agent, &options)) {
        fprintf(stderr, "agentenv-agent: cannot start: %s\n", strerror(errno));
        return EXIT_FAILURE;
    }
    while (!agent.loop.stopped) {
        connections_settle(&agent);
        machine_check_empty(&agent);
        if (!agent.loop.stopped)
            loop_turn(&agent.loop, connections_busy(&agent));
    }
    connections_farewell(&agent);
    signal_everybody(agent.is_init, SIGKILL);
    if (agent.is_vm)
        vm_end();
    return EXIT_SUCCESS;
}
