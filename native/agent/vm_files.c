#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "names.h"
#include "vm.h"

static const struct {
    const char *type, *target;
    mode_t mode;
    unsigned long flags;
    const char *options;
} MOUNTS[] = {
    {"devpts", "/dev/pts", 0755, MS_NOSUID | MS_NOEXEC, "mode=0620,gid=5,ptmxmode=0666"},
    {"tmpfs", "/dev/shm", 0755, MS_NOSUID | MS_NODEV, "mode=1777"},
    {"tmpfs", "/run", 0755, MS_NOSUID | MS_NODEV, "mode=0755,size=64m"},
    {"tmpfs", "/tmp", 0755, MS_NOSUID | MS_NODEV, "mode=1777"},
};

static const char *const LINKS[][2] = {
    {"/proc/self/fd", "/dev/fd"}, {"fd/0", "/dev/stdin"}, {"fd/1", "/dev/stdout"}, {"fd/2", "/dev/stderr"}};

void vm_mount_kernel_files(void) {
    for (size_t i = 0; i < sizeof MOUNTS / sizeof *MOUNTS; i++) {
        mkdir(MOUNTS[i].target, MOUNTS[i].mode);
        if (mount(MOUNTS[i].type, MOUNTS[i].target, MOUNTS[i].type, MOUNTS[i].flags, MOUNTS[i].options) != 0)
            vm_fail(errno, "cannot mount %s", MOUNTS[i].target);
    }
    for (size_t i = 0; i < sizeof LINKS / sizeof *LINKS; i++)
        if (symlink(LINKS[i][0], LINKS[i][1]) != 0 && errno != EEXIST)
            vm_fail(errno, "cannot make %s", LINKS[i][1]);
}

static bool write_setting(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool written = write(fd, text, strlen(text)) >= 0;
    close(fd);
    return written;
}

/* The agent counts too, so it may have one more. Without a limit the cgroup is made all the same: the limit can then be set later. */
void vm_limit_processes(const char *most) {
    char text[32] = "max", rest;
    unsigned long long number;
    if (*most) {
        if (sscanf(most, "%llu%c", &number, &rest) != 1)
            vm_fail(0, "agentenv.pids must be a number, not '%s'", most);
        snprintf(text, sizeof text, "%llu", number + 1);
    }
    bool bounded = mount("cgroup2", "/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0 &&
                   write_setting("/sys/fs/cgroup/cgroup.subtree_control", "+pids") && mkdir("/sys/fs/cgroup/agentenv", 0755) == 0 &&
                   write_setting("/sys/fs/cgroup/agentenv/cgroup.procs", "0") && write_setting("/sys/fs/cgroup/agentenv/pids.max", text);
    if (!bounded && *most)
        vm_fail(errno, "cannot limit the number of processes");
}

static void write_etc(const char *path, mode_t mode, const char *content) {
    if (!vm_write_file(path, mode, content))
        vm_fail(errno, "cannot write %s", path);
}

static void write_hosts(const char *hostname) {
    char text[VM_WORD + 128];
    snprintf(text, sizeof text, "127.0.0.1 localhost\n127.0.1.1 %s\n::1 localhost ip6-localhost ip6-loopback\n", hostname);
    write_etc("/etc/hosts", 0644, text);
}

static void write_resolv(char *servers) {
    char text[2 * VM_WORD + 128] = "";
    size_t size = 0;
    for (char *server; size < sizeof text - VM_WORD && (server = strsep(&servers, ","));)
        size += (size_t)snprintf(text + size, sizeof text - size, "nameserver %s\n", server);
    write_etc("/etc/resolv.conf", 0644, text);
}

static void write_machine_id(const char *given) {
    char text[VM_WORD + 2];
    uint8_t bytes[16];
    if (*given) {
        snprintf(text, sizeof text, "%s\n", given);
    } else {
        /* An early random number need not wait for the pool to be full: the name must differ, not be secret. */
        if (getrandom(bytes, sizeof bytes, GRND_INSECURE) != sizeof bytes)
            vm_fail(errno, "no random numbers");
        for (size_t i = 0; i < sizeof bytes; i++)
            snprintf(text + 2 * i, 4, "%02x\n", bytes[i]);
    }
    write_etc("/etc/machine-id", 0444, text);
}

void vm_write_identity(const struct vm_settings *settings, bool fresh) {
    char line[VM_WORD + 2], servers[VM_WORD], before[VM_WORD];
    mkdir("/etc", 0755);
    write_machine_id(settings->machine_id);
    if (*settings->hostname) {
        /* What the sandbox itself has written there since is kept. */
        names_read(before, sizeof before);
        names_replace(before, settings->hostname);
        snprintf(line, sizeof line, "%s\n", settings->hostname);
        write_etc("/etc/hostname", 0644, line);
    }
    if (fresh && *settings->hostname)
        write_hosts(settings->hostname);
    if (*settings->dns) {
        memcpy(servers, settings->dns, sizeof servers);
        write_resolv(servers);
    }
}
