/*
 * The stem: a mount namespace with nothing but an empty root, a finished read-only /dev, a finished read-only /sys, and where the kernel refuses
 * sandboxes a /proc of their own, a finished reduced one.
 *
 * Each sandbox copies it (three mounts, however many the host has) and moves /dev and /sys into its own root: they are built once per daemon. Being
 * read-only they are no channel between sandboxes.
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "kernel.h"

struct device {
    const char *name;
    unsigned major, minor;
};

static const struct device devices[] = {{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};

static const char *const links[][2] = {
    {"/proc/self/fd", "fd"},         {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"},
    {"/proc/self/fd/2", "stderr"},   {"pts/ptmx", "ptmx"},
};

/* A node of the sandbox's own where the kernel lets us make one, else the host's bound here. `host_dev` is the host's /dev. */
static int make_device(int host_dev, const struct device *device) {
    if (mknod(device->name, S_IFCHR | 0666, makedev(device->major, device->minor)) == 0) {
        int probe = open(device->name, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        if (probe >= 0) close(probe);
        if (probe >= 0 || errno == ENXIO) return 0; /* ENXIO: /dev/tty without a terminal */
        unlink(device->name);
    }
    int node = open(device->name, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
    if (node < 0) return -1;
    close(node);
    return bind_over(host_dev, device->name, device->name, 0);
}

static int fill_devices(int host_dev) {
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (make_device(host_dev, &devices[i]) < 0) return -1;
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (symlink(links[i][0], links[i][1]) < 0) return -1;
    return mkdir("pts", 0755) < 0 || mkdir("shm", 0755) < 0 ? -1 : 0;
}

/* What `nproc --all`, glibc and language runtimes read; the agent keeps the file that the links lead to. */
static int fill_system(void) {
    if (mkdir("devices", 0755) < 0 || mkdir("devices/system", 0755) < 0 || mkdir("devices/system/cpu", 0755) < 0) return -1;
    static const char *const names[] = {"devices/system/cpu/online", "devices/system/cpu/possible", "devices/system/cpu/present"};
    for (size_t i = 0; i < 3; i++)
        if (symlink("/run/agentenv/cpu_online", names[i]) < 0) return -1;
    return 0;
}

static int seal_read_only(const char *path) {
    struct mount_attributes wanted = {.attr_set = ATTR_RDONLY | ATTR_NOSUID};
    return sys_mount_setattr(AT_FDCWD, path, 0, &wanted);
}

/* Mounts a small tmpfs on a new directory of the root that `root` stands for, and goes there. */
static int add_tmpfs(int root, const char *name) {
    if (fchdir(root) < 0 || mkdir(name, 0755) < 0) return -1;
    int mount = tmpfs_mount(1 << 20, "0755", ATTR_NOSUID);
    return mount < 0 || attach(mount, name) < 0 ? -1 : chdir(name);
}

static const char *fill_stem(const struct host *host, int root, int host_dev, int host_proc) {
    if (add_tmpfs(root, "dev") < 0 || fill_devices(host_dev) < 0 || seal_read_only(".") < 0) return "preparing /dev";
    if (add_tmpfs(root, "sys") < 0 || fill_system() < 0 || seal_read_only(".") < 0) return "preparing /sys";
    if (!host->full_proc && (add_tmpfs(root, "proc") < 0 || fill_reduced_proc(host_proc) < 0 || seal_read_only(".") < 0))
        return "preparing a reduced /proc";
    return fchdir(root) < 0 || seal_read_only(".") < 0 ? "preparing an empty root" : NULL;
}

/* Fills an empty tmpfs while the host's /dev and /proc can still be reached, makes it the root and lets go of all else. */
static const char *replace_root(const struct host *host) {
    int host_dev = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC), host_proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int root = tmpfs_mount(1 << 20, "0755", ATTR_NOSUID | ATTR_NODEV);
    if (host_dev < 0 || host_proc < 0 || root < 0 || sys_move_mount(root, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY) < 0) return "mounting an empty root";
    const char *problem = fill_stem(host, root, host_dev, host_proc);
    if (problem != NULL) return problem;
    close(host_dev);
    close(host_proc);
    close(root);
    if (syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0) return "leaving the host's root";
    return NULL;
}

const char *build_stem(struct host *host) {
    /* A slave: what the host mounts later appears here as well, and nothing from here appears there. */
    if (unshare(NS_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0) return "making a mount namespace";
    int process = open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int base = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (process < 0 || base < 0) return "reading /proc";
    if (unshare(NS_NEWNS) < 0) return "making a second mount namespace";
    const char *problem = replace_root(host);
    if (problem != NULL) return problem;
    host->stem = openat(process, "ns/mnt", O_RDONLY | O_CLOEXEC);
    if (host->stem < 0 || setns(base, NS_NEWNS) < 0) return "returning to the host's files";
    close(process);
    close(base);
    return NULL;
}
