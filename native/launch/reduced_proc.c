/*
 * A /proc for machines on which no new one can be mounted.
 *
 * In a user namespace the kernel mounts a procfs only where the caller already sees all of one: containers cover parts of theirs, and then it refuses
 * (EPERM). The host's own must never be shown instead, since it has the host's processes. What is left is a directory of single files that tell of the
 * kernel and the machine; it has no processes, so no /proc/self either.
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel.h"

static const char *const directories[] = {"sys", "sys/kernel", "sys/kernel/random", "sys/vm", "sys/fs", "sys/net", "sys/net/core"};

/* They change, so the host's files themselves are shown, each alone. */
static const char *const live[] = {"meminfo", "cpuinfo", "uptime", "loadavg", "stat"};

/* They do not; a copy cannot be written through, whoever owns the setting. */
static const char *const fixed[] = {
    "version",
    "filesystems",
    "sys/kernel/ostype",
    "sys/kernel/osrelease",
    "sys/kernel/version",
    "sys/kernel/cap_last_cap",
    "sys/kernel/pid_max",
    "sys/kernel/threads-max",
    "sys/kernel/random/boot_id",
    "sys/vm/overcommit_memory",
    "sys/vm/max_map_count",
    "sys/fs/file-max",
    "sys/fs/nr_open",
    "sys/net/core/somaxconn",
};

/* Copies a small file of the host; what the host lacks or hides is left out. */
static int copy_fixed(int host_proc, const char *path) {
    char text[4096];
    int source = openat(host_proc, path, O_RDONLY | O_CLOEXEC);
    ssize_t size = source < 0 ? -1 : read(source, text, sizeof text);
    if (source >= 0) close(source);
    if (size < 0) return 0;
    int copy = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0444);
    if (copy < 0) return -1;
    ssize_t written = write(copy, text, (size_t)size);
    close(copy);
    return written == size ? 0 : -1;
}

/* The file is there in any case: meminfo and cpuinfo may be covered with the sandbox's own. */
static int show_live(int host_proc, const char *path) {
    int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0444);
    if (file < 0) return -1;
    close(file);
    return bind_over(host_proc, path, path, ATTR_RDONLY) < 0 && errno != ENOENT ? -1 : 0;
}

int fill_reduced_proc(int host_proc) {
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
        if (mkdir(directories[i], 0555) < 0) return -1;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (copy_fixed(host_proc, fixed[i]) < 0) return -1;
    for (size_t i = 0; i < sizeof live / sizeof *live; i++)
        if (show_live(host_proc, live[i]) < 0) return -1;
    return 0;
}

/* Whether this process is in the machine's first user namespace, where the kernel refuses nobody a procfs. */
static bool in_first_user_namespace(void) {
    char map[64] = "";
    int file = open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, map, sizeof map - 1);
    if (file >= 0) close(file);
    return size > 0 && strstr(map, "4294967295") != NULL;
}

bool can_mount_proc(void) {
    static const char *const nothing[][2] = {{NULL, NULL}};
    if (in_first_user_namespace()) return true;
    /* Only in a mount namespace of its own user namespace may it mount at all. */
    struct clone_arguments arguments = {.flags = NS_NEWPID | NS_NEWNS, .exit_signal = SIGCHLD};
    pid_t pid = (pid_t)syscall(NR_CLONE3, &arguments, sizeof arguments);
    if (pid == 0) _exit(plain_mount("proc", nothing, ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC) < 0 && errno == EPERM);
    int status = 0;
    /* Where not even this can be tried, the first start fails and says why. */
    return pid < 0 || waitpid(pid, &status, 0) != pid || status == 0;
}
