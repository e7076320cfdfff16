#include "vm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/vm_sockets.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ports.h"

enum { LISTEN_BACKLOG = 1024, KERNEL_GROUP = 1 };

bool vm_is_init(int count, char **arguments) { return getpid() == 1 && count > 0 && strcmp(arguments[0], "/init") == 0; }

_Noreturn void vm_end(void) {
    sync();
    reboot(RB_AUTOBOOT);
    _exit(EXIT_FAILURE);
}

_Noreturn void vm_fail(int number, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "agentenv-agent: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, number ? ": %s\n" : "\n", strerror(number));
    va_end(arguments);
    vm_end();
}

bool vm_write_file(const char *path, mode_t mode, const char *content) {
    /* A link would lead to a file that is not ours to write (resolv.conf into /run, say), so it is replaced. */
    if (unlink(path) != 0 && errno != ENOENT)
        return false;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0)
        return false;
    size_t size = strlen(content);
    bool written = write(fd, content, size) == (ssize_t)size;
    close(fd);
    return written;
}

/* The kernel tells of each new device on this socket; what is opened before the modules are loaded misses none. */
static int open_uevents(void) {
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = KERNEL_GROUP};
    int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0)
        vm_fail(errno, "cannot listen for devices");
    return fd;
}

bool vm_await_device(int uevents, double deadline) {
    char message[8192];
    struct pollfd wait = {.fd = uevents, .events = POLLIN};
    double left = deadline - monotonic_seconds();
    if (left <= 0 || poll(&wait, 1, (int)(left * 1000) + 1) == 0)
        return false;
    while (recv(uevents, message, sizeof message, 0) > 0)
        ;
    return true;
}

static void mount_early(void) {
    static const struct {
        const char *type, *target;
    } EARLY[] = {{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}};
    for (size_t i = 0; i < sizeof EARLY / sizeof *EARLY; i++) {
        mkdir(EARLY[i].target, 0755);
        if (mount(EARLY[i].type, EARLY[i].target, EARLY[i].type, MS_NOSUID | (i ? MS_NODEV | MS_NOEXEC : 0), NULL) != 0 && errno != EBUSY)
            vm_fail(errno, "cannot mount %s", EARLY[i].target);
    }
}

static int listen_on_vsock(unsigned port) {
    struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = port};
    int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, LISTEN_BACKLOG) != 0)
        vm_fail(errno, "cannot listen on vsock port %u", port);
    return fd;
}

static void choose_transport(struct agent *agent, struct options *options, const char *transport, int uevents) {
    unsigned port = 0;
    char rest;
    if (strcmp(transport, "serial") == 0) {
        agent->uevents.fd = uevents;
        return;
    }
    if (sscanf(transport, "vsock:%u%c", &port, &rest) != 1)
        vm_fail(0, "agentenv.transport must be 'serial' or 'vsock:PORT', not '%s'", transport);
    options->listener = listen_on_vsock(port);
    close(uevents);
}

void vm_boot(struct agent *agent, struct options *options) {
    struct vm_settings settings;
    bool fresh;
    umask(022);
    mount_early();
    vm_read_settings(&settings);
    int uevents = open_uevents();
    vm_load_modules();
    agent->upper = vm_mount_root(&settings, uevents, &fresh);
    vm_mount_kernel_files();
    vm_limit_processes(settings.pids);
    if (*settings.hostname && sethostname(settings.hostname, strlen(settings.hostname)) != 0)
        vm_fail(errno, "hostname '%s'", settings.hostname);
    vm_set_up_network(&settings, uevents);
    vm_write_identity(&settings, fresh);
    choose_transport(agent, options, settings.transport, uevents);
    agent->is_vm = true;
}

bool vm_serve(struct agent *agent) { return agent->uevents.fd < 0 || ports_open(agent); }
