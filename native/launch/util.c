/* Small helpers that every part of the launcher uses. */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernel.h"

const char *const stage_names[STAGE_COUNT] = {"cgroup", "network", "files", "root", "mask", "confine", "exec"};

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

_Noreturn void die(const char *what) {
    dprintf(STDERR_FILENO, "agentenv-launch: %s: %s\n", what, strerror(errno));
    exit(1);
}

int write_text(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0) return -1;
    ssize_t length = (ssize_t)strlen(text);
    ssize_t written = write(file, text, (size_t)length);
    int error = errno;
    close(file);
    errno = error;
    return written == length ? 0 : -1;
}

/* Copies a file into a sealed memfd, so that what runs in a sandbox neither names nor can change a file of the host. */
int seal_file(const char *path, const char *name) {
    int source = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (source < 0 || fstat(source, &status) < 0) return -1;
    int copy = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (copy < 0) return -1;
    for (off_t left = status.st_size; left > 0;) {
        ssize_t moved = sendfile(copy, source, NULL, (size_t)left);
        if (moved <= 0) return -1;
        left -= moved;
    }
    close(source);
    if (fchmod(copy, 0555) < 0) return -1;
    if (fcntl(copy, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0) return -1;
    return copy;
}

bool read_number(const char *text, uint64_t *value) {
    if (*text < '0' || *text > '9') return false;
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return *end == '\0' && errno == 0;
}
