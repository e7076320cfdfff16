/* Starting, watching and ending sandboxes. */
#include "daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel.h"

static void watch(struct daemon *daemon, int descriptor, uint32_t events, enum source *source) {
    struct epoll_event event = {.events = events, .data.ptr = source};
    if (epoll_ctl(daemon->events, EPOLL_CTL_ADD, descriptor, &event) < 0) die("watching a sandbox");
}

/* A child that has not executed yet holds copies of these descriptors, so closing alone would leave them watched. */
static void forget(struct daemon *daemon, int descriptor) {
    epoll_ctl(daemon->events, EPOLL_CTL_DEL, descriptor, NULL);
    close(descriptor);
}

static struct sandbox *new_sandbox(struct daemon *daemon, const struct request *request, uint64_t asked) {
    struct sandbox *sandbox = calloc(1, sizeof *sandbox);
    if (sandbox == NULL) die("keeping books");
    sandbox->report_source = SOURCE_REPORT;
    sandbox->process_source = SOURCE_PROCESS;
    sandbox->asked = asked;
    sandbox->core_count = request->cpus;
    snprintf(sandbox->id, sizeof sandbox->id, "%s", request->id);
    sandbox->cores = choose_cores(daemon, request->cpus);
    return sandbox;
}

static void free_sandbox(struct daemon *daemon, struct sandbox *sandbox) {
    release_cores(daemon, sandbox->cores, sandbox->core_count);
    free(sandbox->cores);
    free(sandbox);
}

static pid_t clone_sandbox(struct daemon *daemon, struct request *request, struct sandbox *sandbox, int report_pipe) {
    int group = request->into != NULL ? open(request->into, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (request->into != NULL && group < 0) return -1;
    struct clone_arguments arguments = {
        .flags = NS_NEWPID | NS_NEWIPC | NS_NEWUTS | CLONE_GIVE_PIDFD | (group >= 0 ? CLONE_ENTER_CGROUP : 0),
        .pidfd = (uint64_t)(uintptr_t)&sandbox->pidfd,
        .exit_signal = SIGCHLD,
        .cgroup = group >= 0 ? (uint64_t)group : 0,
    };
    pid_t pid = (pid_t)syscall(NR_CLONE3, &arguments, sizeof arguments);
    if (pid == 0) become_sandbox(&daemon->host, request, report_pipe);
    int error = errno;
    if (group >= 0) close(group);
    errno = error;
    return pid;
}

static void refuse(struct daemon *daemon, const char *id, const char *stage, const char *what) {
    tell(daemon, -1, "event=failed\nid=%s\nstage=%s\nerrno=%d\nwhat=%s", id, stage, errno, what);
}

/* There is a process, whose end will be told as well. */
static void tell_failed(struct daemon *daemon, const char *id, const char *stage, const char *what) {
    tell(daemon, -1, "event=failed\nid=%s\nstage=%s\nerrno=%d\nmade=1\nwhat=%s", id, stage, errno, what);
}

void launch(struct daemon *daemon, struct request *request, uint64_t asked) {
    int pair[2];
    if (pipe2(pair, O_CLOEXEC) < 0) return refuse(daemon, request->id, "clone", "making a pipe");
    if (request->netns == NULL && daemon->network_used) {
        const char *problem = fresh_network();
        if (problem != NULL) {
            refuse(daemon, request->id, "network", problem);
            close(pair[0]);
            close(pair[1]);
            return;
        }
        daemon->network_used = false;
    }
    if (request->cpus > daemon->host.core_count) request->cpus = (unsigned)daemon->host.core_count;
    struct sandbox *sandbox = new_sandbox(daemon, request, asked);
    pid_t pid = clone_sandbox(daemon, request, sandbox, pair[1]);
    int error = errno;
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        errno = error;
        refuse(daemon, request->id, "clone", "making the process and its namespaces");
        return free_sandbox(daemon, sandbox);
    }
    if (request->netns == NULL) daemon->network_used = true;
    if (sandbox->cores != NULL && use_cores(pid, sandbox->cores, sandbox->core_count) < 0) {
        tell_failed(daemon, request->id, "clone", "choosing cores");
        pidfd_send_signal(sandbox->pidfd, SIGKILL);
    }
    sandbox->pid = pid;
    sandbox->cloned = now_ns();
    sandbox->report_pipe = pair[0];
    sandbox->next = daemon->sandboxes;
    daemon->sandboxes = sandbox;
    /* Not EPOLLIN: the report says something only when the pipe has closed, by the execution or by death, and that is always told. */
    watch(daemon, sandbox->report_pipe, 0, &sandbox->report_source);
    watch(daemon, sandbox->pidfd, EPOLLIN, &sandbox->process_source);
}

static struct sandbox *find(struct daemon *daemon, const char *id) {
    for (struct sandbox *sandbox = daemon->sandboxes; sandbox != NULL; sandbox = sandbox->next)
        if (strcmp(sandbox->id, id) == 0) return sandbox;
    return NULL;
}

/* For a start that is given up before its owner has the pidfd. Of one that has ended already the owner is told anyway. */
void kill_sandbox(struct daemon *daemon, const struct request *request) {
    struct sandbox *sandbox = find(daemon, request->id);
    if (sandbox != NULL) pidfd_send_signal(sandbox->pidfd, SIGKILL);
}

/* Chooses cores anew for a live sandbox and tells which; the owner, who sees its processes, moves them. */
void change_cores(struct daemon *daemon, const struct request *request) {
    struct sandbox *sandbox = find(daemon, request->id);
    char list[2048] = "";
    if (sandbox == NULL) {
        errno = ESRCH;
        return refuse(daemon, request->id, "affinity", "finding the sandbox");
    }
    release_cores(daemon, sandbox->cores, sandbox->core_count);
    free(sandbox->cores);
    sandbox->core_count = request->cpus;
    sandbox->cores = choose_cores(daemon, request->cpus);
    const uint16_t *cores = sandbox->cores != NULL ? sandbox->cores : daemon->host.cores;
    size_t count = sandbox->cores != NULL ? sandbox->core_count : daemon->host.core_count, used = 0;
    for (size_t i = 0; i < count && used < sizeof list - 8; i++) used += (size_t)snprintf(list + used, sizeof list - used, "%s%u", i > 0 ? "," : "", cores[i]);
    tell(daemon, -1, "event=cores\nid=%s\ncores=%s", sandbox->id, list);
}

static void tell_started(struct daemon *daemon, const struct sandbox *sandbox, const struct report *report) {
    char stages[512];
    size_t used = 0;
    uint64_t before = sandbox->asked;
    for (int stage = 0; stage < STAGE_EXEC; stage++) {
        uint64_t end = report->ended[stage];
        used += (size_t)snprintf(stages + used, sizeof stages - used, "%s%s:%llu", stage > 0 ? "," : "", stage_names[stage],
                                 (unsigned long long)(end > before ? end - before : 0));
        before = end;
    }
    snprintf(stages + used, sizeof stages - used, ",exec:%llu", (unsigned long long)(now_ns() - before));
    tell(daemon, sandbox->pidfd, "event=started\nid=%s\npid=%d\nstages=%s", sandbox->id, (int)sandbox->pid, stages);
}

/* The child has written its report, or its end of the pipe closed: it is the agent now, or dead. */
void report_ready(struct daemon *daemon, struct sandbox *sandbox) {
    struct report report = {0}, next;
    bool told = false;
    while (read(sandbox->report_pipe, &next, sizeof next) == (ssize_t)sizeof next) {
        report = next;
        told = true;
    }
    forget(daemon, sandbox->report_pipe);
    sandbox->report_pipe = -1;
    sandbox->looks = report.looks;
    if (told && report.error == 0) return tell_started(daemon, sandbox, &report);
    errno = told ? report.error : ECHILD;
    tell_failed(daemon, sandbox->id, told ? stage_names[report.stage] : "clone", told ? report.what : "the process ended before it was a sandbox");
}

void process_ended(struct daemon *daemon, struct sandbox *sandbox) {
    siginfo_t information = {0};
    if (waitid(PIDFD_TYPE, (id_t)sandbox->pidfd, &information, WEXITED) < 0 && errno == EINTR) return;
    if (sandbox->report_pipe >= 0) report_ready(daemon, sandbox);
    bool exited = information.si_code == CLD_EXITED;
    tell(daemon, -1, "event=exit\nid=%s\n%s=%d", sandbox->id, exited ? "code" : "signal", information.si_status);
    forget(daemon, sandbox->pidfd);
    for (struct sandbox **link = &daemon->sandboxes; *link != NULL; link = &(*link)->next) {
        if (*link != sandbox) continue;
        *link = sandbox->next;
        break;
    }
    free_sandbox(daemon, sandbox);
}

/* The owner is gone: nothing may outlive it. */
_Noreturn void end_all(struct daemon *daemon) {
    for (struct sandbox *sandbox = daemon->sandboxes; sandbox != NULL; sandbox = sandbox->next) pidfd_send_signal(sandbox->pidfd, SIGKILL);
    for (struct sandbox *sandbox = daemon->sandboxes; sandbox != NULL; sandbox = sandbox->next)
        while (waitpid(sandbox->pid, NULL, 0) < 0 && errno == EINTR) continue;
    for (size_t i = 0; i < daemon->sweep_count; i++) sweep(daemon->sweeps[i]);
    exit(0);
}
