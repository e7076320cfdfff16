#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vm.h"

enum { LOWEST_PRIORITY = 19 };

static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static bool load(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool loaded = syscall(SYS_finit_module, fd, "", 0) == 0 || errno == EEXIST;
    int problem = errno;
    close(fd);
    /* The file lies in memory. */
    unlink(path);
    errno = problem;
    return loaded;
}

static void load_all(const char *directory, bool needed) {
    struct dirent **entries;
    char path[64 + sizeof entries[0]->d_name];
    int count = scandir(directory, &entries, is_visible, alphasort);
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, entries[i]->d_name);
        if (!load(path)) {
            if (needed)
                vm_fail(errno, "cannot load %s", path);
            fprintf(stderr, "agentenv-agent: cannot load %s: %s\n", path, strerror(errno));
        }
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
}

void vm_load_modules(void) {
    load_all("/modules", true);
    if (fork() != 0)
        return; /* without memory for a child the machine has no network and no balloon, and will say so itself */
    setpriority(PRIO_PROCESS, 0, LOWEST_PRIORITY);
    load_all("/later", false);
    _exit(EXIT_SUCCESS);
}
