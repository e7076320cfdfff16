#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vm.h"

static const char MODULES[] = "/modules";

static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static void load(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) != 0 && errno != EEXIST))
        vm_fail(errno, "cannot load %s", path);
    close(fd);
    /* The file lies in memory. */
    unlink(path);
}

void vm_load_modules(void) {
    struct dirent **entries;
    char path[sizeof MODULES + 1 + sizeof entries[0]->d_name];
    int count = scandir(MODULES, &entries, is_visible, alphasort);
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", MODULES, entries[i]->d_name);
        load(path);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
}
