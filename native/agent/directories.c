#include <errno.h>
#include <string.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

static int make_one(const char *path, mode_t mode, const struct user *owner) {
    struct stat info;
    if (mkdir(path, mode) == 0) {
        /* Neither the umask nor a set-group-id directory above decides: the caller said which mode. */
        if (chmod(path, mode) != 0)
            return -1;
        return owner->uid == geteuid() || lchown(path, owner->uid, owner->gid) == 0 ? 1 : -1;
    }
    if (errno == EEXIST && stat(path, &info) == 0) {
        if (S_ISDIR(info.st_mode))
            return 0;
        errno = ENOTDIR;
    }
    return -1;
}

int make_parents(const char *path, const struct user *owner) {
    char partial[PATH_MAX];
    size_t size = strlen(path);
    if (size >= sizeof partial) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(partial, path, size + 1);
    for (char *slash = strchr(partial + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        if (slash[1] == '\0' || slash[1] == '/')
            continue;
        *slash = '\0';
        if (make_one(partial, 0755, owner) < 0)
            return -1;
        *slash = '/';
    }
    return 0;
}

int make_directory(const char *path, mode_t mode, bool parents, const struct user *owner) {
    if (parents && make_parents(path, owner) < 0)
        return -1;
    return make_one(path, mode, owner);
}
