#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILD_STACK = 65536 };

struct launch {
    const struct agent *agent;
    const struct spawn_request *request;
    struct spawn_failure *failure;
};

/* What follows runs in a child that shares the agent's memory until it executes: it makes system calls, writes its own stack and `failure`, nothing else.
 * The identity is changed by bare system calls, as the C library's wrappers would try to change the agent's other threads. */

static int give_up(const struct launch *launch, const char *step) {
    launch->failure->number = errno;
    launch->failure->step = step;
    return 127;
}

/* The agent is the last that the kernel's out-of-memory killer may choose; its children are not. */
static void reset_oom_score(void) {
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, "0", 1) == 1)
        close(fd);
}

static bool become(const struct user *user) {
    if (user->uid == geteuid() && user->gid == getegid())
        return true;
    return syscall(SYS_setgroups, user->group_count, user->groups) == 0 && syscall(SYS_setresgid, user->gid, user->gid, user->gid) == 0 &&
           syscall(SYS_setresuid, user->uid, user->uid, user->uid) == 0;
}

static void execute(const struct spawn_request *request) {
    const char *name = request->argv[0];
    if (strchr(name, '/')) {
        execve(name, request->argv, request->envp);
        return;
    }
    char candidate[PATH_MAX];
    int result = ENOENT;
    for (const char *at = request->path; *name && at; at = strchr(at, ':'), at = at ? at + 1 : NULL) {
        size_t size = strcspn(at, ":");
        if (size == 0 || size + strlen(name) + 2 > sizeof candidate)
            continue;
        memcpy(candidate, at, size);
        candidate[size] = '/';
        strcpy(candidate + size + 1, name);
        execve(candidate, request->argv, request->envp);
        /* As the shells do: a file that may not be executed is remembered, while the search goes on. */
        if (errno == EACCES)
            result = EACCES;
        else if (errno != ENOENT && errno != ENOTDIR) {
            return;
        }
    }
    errno = result;
}

static bool plug_descriptors(const struct spawn_request *request) {
    return dup2(request->in, STDIN_FILENO) >= 0 && dup2(request->out, STDOUT_FILENO) >= 0 && dup2(request->err, STDERR_FILENO) >= 0;
}

/* The agent ignores SIGPIPE, and what started the agent may ignore others (a launcher the terminal's Ctrl-C): a program that finds a signal
 * ignored takes that for its parent's wish, and a shell then cannot even trap it. */
static void default_signals(void) {
    static const unsigned long standard[4]; /* the kernel's struct sigaction: the default handler, no flags, an empty mask */
    for (int number = 1; number < NSIG; number++)
        syscall(SYS_rt_sigaction, number, standard, NULL, 8); /* the C library would refuse the numbers that it uses itself */
}

static int child(void *argument) {
    const struct launch *launch = argument;
    const struct spawn_request *request = launch->request;
    if (setsid() < 0 || !plug_descriptors(request))
        return give_up(launch, "cannot connect its standard streams");
    if (request->terminal && ioctl(STDIN_FILENO, TIOCSCTTY, 0) != 0)
        return give_up(launch, "cannot give it a controlling terminal");
    if (launch->agent->oom_protected)
        reset_oom_score();
    setrlimit(RLIMIT_NOFILE, &launch->agent->original_files);
    if (!become(request->user))
        return give_up(launch, "cannot become the user");
    if (chdir(request->cwd) != 0)
        return give_up(launch, "cannot enter the working directory");
    sigset_t none;
    sigemptyset(&none);
    default_signals();
    sigprocmask(SIG_SETMASK, &none, NULL);
    execute(request);
    return give_up(launch, "cannot execute");
}

pid_t spawn(const struct agent *agent, const struct spawn_request *request, struct spawn_failure *failure) {
    static alignas(16) char stack[CHILD_STACK];
    struct launch launch = {agent, request, failure};
    *failure = (struct spawn_failure){0};
    /* Sharing the memory instead of copying its tables makes the start about three times faster, and the agent sees the child's `failure` for free. */
    pid_t pid = clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &launch);
    if (pid < 0) {
        *failure = (struct spawn_failure){errno, "cannot fork"};
        return -1;
    }
    if (failure->number == 0)
        return pid;
    waitpid(pid, NULL, 0);
    return -1;
}
