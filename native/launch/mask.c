/*
 * What /proc shows too much of. The list is looked through once per daemon: which of it exists depends on how the kernel was built.
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "kernel.h"

/* Files that tell about the whole machine or act on it: each is covered by /dev/null. */
static const char *const hidden[] = {
    "/proc/kcore",      "/proc/keys",          "/proc/key-users",  "/proc/sysrq-trigger", "/proc/timer_list", "/proc/kallsyms",   "/proc/kmsg",
    "/proc/sched_debug", "/proc/latency_stats", "/proc/interrupts", "/proc/vmallocinfo",   "/proc/config.gz",  "/proc/cmdline",
};

/* Directories in which root could change the kernel's settings. */
static const char *const frozen[] = {"/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi"};

static size_t find_existing(const char *const *paths, size_t count, const char **found) {
    size_t used = 0;
    for (size_t i = 0; i < count; i++)
        if (access(paths[i], F_OK) == 0) found[used++] = paths[i];
    return used;
}

void find_masks(struct host *host) {
    if (!host->full_proc) return; /* a reduced one shows nothing of this kind */
    host->hidden_count = find_existing(hidden, sizeof hidden / sizeof *hidden, host->hidden);
    host->frozen_count = find_existing(frozen, sizeof frozen / sizeof *frozen, host->frozen);
}

/* The path that could not be covered, errno set, or NULL. /dev is read-only already, and so is what is cloned from it. */
const char *hide_kernel(const struct host *host) {
    for (size_t i = 0; i < host->hidden_count; i++)
        if (bind_over(AT_FDCWD, "/dev/null", host->hidden[i], 0) < 0 && errno != ENOENT) return host->hidden[i];
    for (size_t i = 0; i < host->frozen_count; i++)
        if (bind_over(AT_FDCWD, host->frozen[i], host->frozen[i], ATTR_RDONLY) < 0 && errno != ENOENT) return host->frozen[i];
    return NULL;
}
