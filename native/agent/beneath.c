#include "beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* One component at a time, refusing every link: for kernels before 5.6 and filters that do not know openat2. */
static int open_stepwise(int root, const char *path) {
    char component[NAME_MAX + 1];
    int fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd >= 0 && *path) {
        size_t size = strcspn(path, "/");
        int next = -1;
        if (size > NAME_MAX) {
            errno = ENAMETOOLONG;
        } else {
            memcpy(component, path, size);
            component[size] = '\0';
            next = openat(fd, component, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        }
        int problem = errno;
        close(fd);
        errno = problem;
        fd = next;
        path += size + (path[size] == '/');
    }
    return fd;
}

int beneath_open(int root, const char *path) {
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    long fd = syscall(SYS_openat2, root, *path ? path : ".", &how, sizeof how);
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM && errno != E2BIG))
        return (int)fd;
    return open_stepwise(root, path);
}

/* Makes what is missing, from the top; each step starts at the root again, so that links are judged anew. */
int beneath_directory(int root, const char *path, const struct user *owner) {
    char partial[PATH_MAX];
    int fd = beneath_open(root, path);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    int above = beneath_open(root, "");
    for (const char *at = path; above >= 0; ) {
        size_t size = strcspn(at, "/"), total = (size_t)(at - path) + size;
        char name[NAME_MAX + 1];
        if (size > NAME_MAX || total >= sizeof partial) {
            errno = ENAMETOOLONG;
            break;
        }
        memcpy(name, at, size);
        name[size] = '\0';
        memcpy(partial, path, total);
        partial[total] = '\0';
        if (mkdirat(above, name, 0755) == 0) {
            if (owner->uid != geteuid() && fchownat(above, name, owner->uid, owner->gid, AT_SYMLINK_NOFOLLOW) != 0)
                break;
        } else if (errno != EEXIST) {
            break;
        }
        close(above);
        above = beneath_open(root, partial);
        if (at[size] == '\0')
            return above;
        at += size + 1;
    }
    int problem = errno;
    if (above >= 0)
        close(above);
    errno = problem;
    return -1;
}
