/* Removes the cgroups of an owner that has no more time to do it: those of its sandboxes, and those it made and had not used yet. */
#include "daemon.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TRIES = 1000, PAUSE_NS = 1000000 };

/* A cgroup is busy for a moment after its last process was reaped, and of that version 1 tells nobody. */
static void remove_group(int parent, const char *name) {
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    for (int i = 0; i < TRIES && unlinkat(parent, name, AT_REMOVEDIR) < 0 && errno == EBUSY; i++) nanosleep(&pause, NULL);
}

void sweep(const char *beginning) {
    char path[4096];
    size_t length = strlen(beginning);
    if (length >= sizeof path) return;
    memcpy(path, beginning, length + 1);
    char *name = strrchr(path, '/');
    if (name == NULL) return;
    *name++ = '\0';
    DIR *parent = opendir(path);
    if (parent == NULL) return; /* nothing was ever made there */
    for (struct dirent *entry; (entry = readdir(parent)) != NULL;)
        if (strncmp(entry->d_name, name, strlen(name)) == 0) remove_group(dirfd(parent), entry->d_name);
    closedir(parent);
}
