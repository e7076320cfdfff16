/*
 * Detached mounts by the new mount API.
 *
 * Overlays are given relative paths (the process stands in the directory that it names as "."), so that /proc/self/mountinfo in the sandbox shows no
 * path of the host.
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernel.h"

static int set_option(int context, const char *key, const char *value) {
    return sys_fsconfig(context, value[0] == '\0' ? FSCONFIG_FLAG : FSCONFIG_STRING, key, value[0] == '\0' ? NULL : value);
}

static int finish(int context, unsigned attributes) {
    int mount = sys_fsconfig(context, FSCONFIG_CREATE, NULL, NULL) < 0 ? -1 : sys_fsmount(context, attributes);
    int error = errno;
    close(context);
    errno = error;
    return mount;
}

int plain_mount(const char *type, const char *const options[][2], unsigned attributes) {
    int context = sys_fsopen(type);
    if (context < 0) return -1;
    for (size_t i = 0; options[i][0] != NULL; i++) {
        if (set_option(context, options[i][0], options[i][1]) < 0) {
            int error = errno;
            close(context);
            errno = error;
            return -1;
        }
    }
    return finish(context, attributes);
}

int tmpfs_mount(uint64_t bytes, const char *mode, unsigned attributes) {
    char size[32];
    snprintf(size, sizeof size, "%llu", (unsigned long long)bytes);
    const char *const options[][2] = {{"mode", mode}, {bytes > 0 ? "size" : NULL, size}, {NULL, NULL}};
    return plain_mount("tmpfs", options, attributes);
}

/* Stands in each directory in turn and names it ".": kernels from 6.8 on, which look a layer up at once and know `lowerdir+`. */
static int name_by_standing(int context, const struct tree *tree) {
    for (size_t i = 0; i < tree->lower_count; i++)
        if (chdir(tree->lowers[i]) < 0 || sys_fsconfig(context, FSCONFIG_STRING, "lowerdir+", ".") < 0) return -1;
    if (chdir(tree->upper) < 0 || sys_fsconfig(context, FSCONFIG_STRING, "upperdir", ".") < 0) return -1;
    return chdir(tree->work) < 0 ? -1 : sys_fsconfig(context, FSCONFIG_STRING, "workdir", ".");
}

/* Older kernels take one string of at most 255 bytes and look it up at the end: stand in /proc/self/fd and name descriptors. */
static int name_by_descriptor(int context, const struct tree *tree) {
    char list[256] = "", number[16];
    size_t used = 0;
    for (size_t i = 0; i < tree->lower_count; i++) {
        int layer = open(tree->lowers[i], O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (layer < 0) return -1;
        int length = snprintf(list + used, sizeof list - used, "%s%d", i > 0 ? ":" : "", layer);
        used += (size_t)length;
        if (used >= sizeof list) {
            errno = E2BIG;
            return -1;
        }
    }
    const char *const writable[][2] = {{"upperdir", tree->upper}, {"workdir", tree->work}};
    for (size_t i = 0; i < 2; i++) {
        int directory = open(writable[i][1], O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (directory < 0) return -1;
        snprintf(number, sizeof number, "%d", directory);
        if (sys_fsconfig(context, FSCONFIG_STRING, writable[i][0], number) < 0) return -1;
    }
    return chdir("/proc/self/fd") < 0 ? -1 : sys_fsconfig(context, FSCONFIG_STRING, "lowerdir", list);
}

static int overlay_context(bool user_namespace) {
    int context = sys_fsopen("overlay");
    if (context < 0) return -1;
    if (user_namespace && sys_fsconfig(context, FSCONFIG_FLAG, "userxattr", NULL) < 0) return -1;
    /* Nothing written in a sandbox outlives a crash of the machine, so nothing waits for the disk. Older kernels lack the option: then it waits. */
    (void)sys_fsconfig(context, FSCONFIG_FLAG, "volatile", NULL);
    return context;
}

int overlay_mount(const struct tree *tree, bool user_namespace) {
    unsigned attributes = ATTR_NODEV | ATTR_NOSUID;
    int context = overlay_context(user_namespace);
    if (context < 0) return -1;
    if (name_by_standing(context, tree) < 0) {
        int error = errno;
        close(context);
        errno = error;
        if (error != EINVAL) return -1;
        context = overlay_context(user_namespace);
        if (context < 0 || name_by_descriptor(context, tree) < 0) return -1;
    }
    return finish(context, attributes);
}

static int make_directories(const char *path) {
    char partial[4096];
    size_t length = strlen(path);
    if (length >= sizeof partial) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(partial, path, length + 1);
    for (char *slash = partial + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        if (mkdir(partial, 0755) < 0 && errno != EEXIST) return -1;
        *slash = '/';
    }
    return mkdir(partial, 0755) < 0 && errno != EEXIST ? -1 : 0;
}

/* Attaches a detached mount at a directory, or where a link leads, which is made where the image lacks it. Closes `mount`. */
int attach(int mount, const char *target) {
    const unsigned flags = MOVE_MOUNT_F_EMPTY | MOVE_MOUNT_T_LINKS;
    int done = sys_move_mount(mount, "", AT_FDCWD, target, flags);
    if (done < 0 && errno == ENOENT && make_directories(target) == 0) done = sys_move_mount(mount, "", AT_FDCWD, target, flags);
    int error = errno;
    close(mount);
    errno = error;
    return done;
}

/* Puts a clone of one file or directory over another. */
int bind_over(int directory, const char *source, const char *target, unsigned attributes) {
    int clone = sys_open_tree(directory, source, OPEN_TREE_CLONE_FLAG | OPEN_TREE_CLOEXEC_FLAG);
    if (clone < 0) return -1;
    struct mount_attributes wanted = {.attr_set = attributes};
    int done = attributes == 0 ? 0 : sys_mount_setattr(clone, "", EMPTY_PATH_AT, &wanted);
    if (done == 0) done = sys_move_mount(clone, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY);
    int error = errno;
    close(clone);
    errno = error;
    return done;
}
