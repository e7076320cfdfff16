/*
 * What happens in a freshly cloned process until it is the agent of a sandbox: it enters its cgroups and network, mounts its files, moves into them,
 * hides what the kernel would show too much of, gives up its powers and executes the agent.
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernel.h"

struct birth {
    const struct host *host;
    const struct request *request;
    struct report report;
    int trees[TREES_MAX], proc, tmp, shm, run, pts; /* detached mounts */
    int memory_usage, oom_kills, cpuinfo; /* for the agent, -1: none */
};

static bool fail(struct birth *birth, const char *what, const char *detail) {
    birth->report.error = errno;
    snprintf(birth->report.what, sizeof birth->report.what, "%s%s%s", what, detail != NULL ? " " : "", detail != NULL ? detail : "");
    return false;
}

/*
 * A thread that writes 0 to a `tasks` enters that cgroup without the lock over all processes that moving another would take. The cgroup namespace
 * comes afterwards, so that its root is the sandbox's own.
 */
static bool enter_groups(struct birth *birth) {
    for (size_t i = 0; i < birth->request->group_count; i++)
        if (write_text(birth->request->groups[i], "0") < 0) return fail(birth, "entering the cgroup", birth->request->groups[i]);
    return unshare(NS_NEWCGROUP) < 0 ? fail(birth, "making a cgroup namespace", NULL) : true;
}

static bool enter_network(struct birth *birth) {
    const char *path = birth->request->netns;
    if (path == NULL) return true; /* the daemon stands in a fresh one, which was inherited */
    int network = open(path, O_RDONLY | O_CLOEXEC);
    if (network < 0 || setns(network, NS_NEWNET) < 0) return fail(birth, "entering the network namespace", path);
    close(network);
    return true;
}

static int make_layer(const char *path) {
    char parent[4096];
    if (mkdir(path, 0755) == 0 || errno == EEXIST) return 0;
    if (errno != ENOENT || strlen(path) >= sizeof parent) return -1;
    strcpy(parent, path);
    char *slash = strrchr(parent, '/');
    if (slash == NULL || slash == parent) return -1;
    *slash = '\0';
    if (mkdir(parent, 0755) < 0 && errno != EEXIST) return -1;
    return mkdir(path, 0755) < 0 && errno != EEXIST ? -1 : 0;
}

static bool prepare_trees(struct birth *birth) {
    const struct request *request = birth->request;
    for (size_t i = 0; i < request->tree_count; i++) {
        const struct tree *tree = &request->trees[i];
        if (make_layer(tree->upper) < 0 || make_layer(tree->work) < 0) return fail(birth, "making the writable layer of", tree->target);
        birth->trees[i] = overlay_mount(tree, birth->host->user_namespace);
        if (birth->trees[i] < 0) return fail(birth, "mounting the overlay of", tree->target);
    }
    return true;
}

static bool prepare_files(struct birth *birth) {
    static const char *const nothing[][2] = {{NULL, NULL}};
    static const char *const terminals[][2] = {{"mode", "0620"}, {"ptmxmode", "0666"}, {"gid", "5"}, {NULL, NULL}};
    static const char *const terminals_of_one[][2] = {{"mode", "0620"}, {"ptmxmode", "0666"}, {NULL, NULL}};
    const struct request *request = birth->request;
    bool all_ids = !birth->host->user_namespace || birth->host->many_ids;
    birth->memory_usage = birth->oom_kills = birth->cpuinfo = -1;
    if (request->memory_file != NULL && (birth->memory_usage = open(request->memory_file, O_RDONLY | O_CLOEXEC)) < 0)
        return fail(birth, "opening the memory use", request->memory_file);
    if (request->oom_file != NULL && (birth->oom_kills = open(request->oom_file, O_RDONLY | O_CLOEXEC)) < 0)
        return fail(birth, "opening the kills for want of memory", request->oom_file);
    if (request->cpus > 0 && (birth->cpuinfo = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC)) < 0) return fail(birth, "opening /proc/cpuinfo", NULL);
    birth->proc = -1;
    if (birth->host->full_proc && (birth->proc = plain_mount("proc", nothing, ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC)) < 0) return fail(birth, "mounting /proc", NULL);
    if ((birth->pts = plain_mount("devpts", all_ids ? terminals : terminals_of_one, ATTR_NOSUID | ATTR_NOEXEC)) < 0) return fail(birth, "mounting /dev/pts", NULL);
    if ((birth->tmp = tmpfs_mount(request->tmp_bytes, "1777", ATTR_NOSUID | ATTR_NODEV)) < 0) return fail(birth, "mounting /tmp", NULL);
    if ((birth->shm = tmpfs_mount(request->shm_bytes, "1777", ATTR_NOSUID | ATTR_NODEV)) < 0) return fail(birth, "mounting /dev/shm", NULL);
    if ((birth->run = tmpfs_mount(request->run_bytes, "0755", ATTR_NOSUID | ATTR_NODEV)) < 0) return fail(birth, "mounting /run", NULL);
    return prepare_trees(birth);
}

/*
 * Swaps the stem's empty root for the sandbox's; /dev, /sys and a reduced /proc move over from the stem's copy. The empty root ends up below /proc, which covers it:
 * unmounting it would wait for every processor of the machine.
 */
static bool enter_root(struct birth *birth) {
    if (setns(birth->host->stem, NS_NEWNS) < 0 || unshare(NS_NEWNS) < 0) return fail(birth, "making a mount namespace", NULL);
    int dev = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC), sys = open("/sys", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (!birth->host->full_proc && (birth->proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0) return fail(birth, "finding", "/proc");
    int root = birth->trees[0];
    if (dev < 0 || sys < 0 || sys_move_mount(root, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY) < 0) return fail(birth, "attaching the root", NULL);
    if (fchdir(root) < 0 || (mkdir("proc", 0555) < 0 && errno != EEXIST)) return fail(birth, "making", "/proc");
    if (syscall(SYS_pivot_root, ".", "proc") < 0 || chdir("/") < 0) return fail(birth, "changing the root", NULL);
    close(root);
    if (attach(dev, "/dev") < 0) return fail(birth, "attaching", "/dev");
    if (attach(sys, "/sys") < 0) return fail(birth, "attaching", "/sys");
    const struct { int mount; const char *target; } mounts[] = {
        {birth->proc, "/proc"}, {birth->pts, "/dev/pts"}, {birth->shm, "/dev/shm"}, {birth->tmp, "/tmp"}, {birth->run, "/run"},
    };
    for (size_t i = 1; i < birth->request->tree_count; i++)
        if (attach(birth->trees[i], birth->request->trees[i].target) < 0) return fail(birth, "attaching", birth->request->trees[i].target);
    for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++)
        if (attach(mounts[i].mount, mounts[i].target) < 0) return fail(birth, "attaching", mounts[i].target);
    return true;
}

static int make_file(const char *path, const char *content) {
    int file = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) return -1;
    size_t length = strlen(content);
    ssize_t written = write(file, content, length);
    close(file);
    return written == (ssize_t)length ? 0 : -1;
}

/* The daemon, which watches for all its sandboxes, tells the agent when its meminfo is read. Without a watch it is rewritten at each command. */
static void watch_looks(struct birth *birth) {
    int watch = birth->host->looks < 0 ? -1 : inotify_add_watch(birth->host->looks, "/run/agentenv/meminfo", IN_ACCESS);
    birth->report.looks = watch < 0 ? 0 : watch;
}

/* The files by which the agent tells the guest its limits; it fills them before it answers anybody. */
static bool show_limits(struct birth *birth) {
    const struct request *request = birth->request;
    size_t cores = request->cpus > 0 ? request->cpus : birth->host->core_count;
    char online[32] = "0\n";
    if (cores > 1) snprintf(online, sizeof online, "0-%zu\n", cores - 1);
    if (mkdir("/run/agentenv", 0755) < 0 || make_file("/run/agentenv/cpu_online", online) < 0) return fail(birth, "making /run/agentenv", NULL);
    if (make_file("/run/agentenv/meminfo", "") < 0 || make_file("/run/agentenv/cpuinfo", "") < 0) return fail(birth, "making /run/agentenv", NULL);
    if (request->show_memory && bind_over(AT_FDCWD, "/run/agentenv/meminfo", "/proc/meminfo", ATTR_RDONLY) < 0) return fail(birth, "covering", "/proc/meminfo");
    if (request->show_memory) watch_looks(birth);
    if (request->cpus > 0 && bind_over(AT_FDCWD, "/run/agentenv/cpuinfo", "/proc/cpuinfo", ATTR_RDONLY) < 0) return fail(birth, "covering", "/proc/cpuinfo");
    return true;
}

static bool mask_kernel(struct birth *birth) {
    const char *path = hide_kernel(birth->host);
    return path != NULL ? fail(birth, "covering", path) : show_limits(birth);
}

/* Moves the descriptors to the numbers that the agent expects; every other one closes with the execution. */
static bool place_descriptors(struct birth *birth, int *report_pipe) {
    const struct request *request = birth->request;
    const int wanted[AGENT_FIRST_FREE] = {-1, -1, request->log, request->listen, birth->memory_usage, birth->cpuinfo, birth->oom_kills};
    int high[AGENT_FIRST_FREE];
    for (int i = 0; i < AGENT_FIRST_FREE; i++) high[i] = wanted[i] < 0 ? -1 : fcntl(wanted[i], F_DUPFD_CLOEXEC, 64);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC), pipe_copy = fcntl(*report_pipe, F_DUPFD_CLOEXEC, 64);
    if (null < 0 || pipe_copy < 0) return fail(birth, "opening /dev/null", NULL);
    null = fcntl(null, F_DUPFD_CLOEXEC, 64);
    *report_pipe = pipe_copy;
    for (int i = 0; i < AGENT_FIRST_FREE; i++) {
        int source = wanted[i] < 0 ? (i <= AGENT_STDERR ? null : -1) : high[i];
        if (wanted[i] >= 0 && source < 0) return fail(birth, "copying a descriptor", NULL);
        if (source >= 0 && dup2(source, i) < 0) return fail(birth, "placing a descriptor", NULL);
        if (source < 0) close(i);
    }
    return close_range_on_exec(AGENT_FIRST_FREE) < 0 ? fail(birth, "closing descriptors", NULL) : true;
}

/* The daemon's death kills the sandbox. It may have died before this was asked for; then its pidfd is readable already. */
static bool die_with_daemon(struct birth *birth) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0) return fail(birth, "binding the sandbox's life to its owner's", NULL);
    struct pollfd daemon = {.fd = birth->host->self, .events = POLLIN};
    if (poll(&daemon, 1, 0) > 0) _exit(1);
    return true;
}

static bool prepare_process(struct birth *birth, int *report_pipe) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    umask(022);
    if (setsid() < 0) return fail(birth, "starting a session", NULL);
    const char *hostname = birth->request->hostname != NULL ? birth->request->hostname : "sandbox";
    if (sethostname(hostname, strlen(hostname)) < 0) return fail(birth, "naming the machine", hostname);
    const char *problem = set_limits();
    if (problem != NULL) return fail(birth, problem, NULL);
    /* The agent is the last process that a shortage of memory should end. Without CAP_SYS_RESOURCE the kernel refuses, which only loses that wish. */
    (void)write_text("/proc/self/oom_score_adj", "-1000");
    return place_descriptors(birth, report_pipe);
}

static bool run_stage(struct birth *birth, enum stage stage, bool (*step)(struct birth *)) {
    birth->report.stage = stage;
    bool done = step(birth);
    birth->report.ended[stage] = now_ns();
    return done;
}

static void send_report(const struct birth *birth, int report_pipe) {
    ssize_t ignored = write(report_pipe, &birth->report, sizeof birth->report);
    (void)ignored; /* the daemon is gone: nobody is left to be told, and the parent-death signal follows */
}

_Noreturn void become_sandbox(const struct host *host, const struct request *request, int report_pipe) {
    struct birth birth = {.host = host, .request = request};
    bool well = run_stage(&birth, STAGE_CGROUP, enter_groups) && run_stage(&birth, STAGE_NETWORK, enter_network) &&
                run_stage(&birth, STAGE_FILES, prepare_files) && run_stage(&birth, STAGE_ROOT, enter_root) &&
                run_stage(&birth, STAGE_MASK, mask_kernel);
    if (well) {
        birth.report.stage = STAGE_CONFINE;
        well = prepare_process(&birth, &report_pipe);
    }
    if (well) {
        const char *problem = lock_down(host);
        well = problem == NULL ? die_with_daemon(&birth) : fail(&birth, problem, NULL);
        birth.report.ended[STAGE_CONFINE] = now_ns();
    }
    if (well) {
        birth.report.stage = STAGE_EXEC;
        char *const environment[] = {NULL};
        send_report(&birth, report_pipe);
        syscall(SYS_execveat, host->agent, "", (char *const *)(uintptr_t)request->arguments, environment, EMPTY_PATH_AT);
        fail(&birth, "executing the agent", NULL);
    }
    send_report(&birth, report_pipe);
    _exit(1);
}
