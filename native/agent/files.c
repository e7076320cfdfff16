#include "files.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "operations.h"

bool take_owner(struct stream *stream, struct mp_value body, struct user *owner) {
    char *name;
    const struct agent *agent = stream_agent(stream);
    if (!take_user(stream, body, "user", &name))
        return false;
    bool found = user_find(name ? name : agent->user ? agent->user : "0", owner);
    if (!found)
        stream_fail(stream, errno, "user '%.64s'", name ? name : agent->user);
    free(name);
    return found;
}

/* The answer to an operation that is one system call; frees the path. */
static void answer(struct stream *stream, int result, char *path) {
    int problem = errno;
    if (result == 0)
        stream_done(stream);
    else
        stream_fail(stream, problem, "%.400s", path);
    free(path);
}

void operation_stat(struct stream *stream, struct mp_value body) {
    char *path, *attributes, target[PATH_MAX];
    bool follow = true;
    struct stat info;
    struct names names = {0};
    size_t mark;
    if (!take_flag(stream, body, "follow", &follow) || !take_attributes(stream, body, "attributes", false, &attributes))
        return;
    if (!take_path(stream, body, "path", &path)) {
        free(attributes);
        return;
    }
    if ((follow ? stat(path, &info) : lstat(path, &info)) != 0) {
        answer(stream, -1, path);
        free(attributes);
        return;
    }
    ssize_t size = readlink(path, target, sizeof target - 1);
    if (size >= 0)
        target[size] = '\0';
    entry_write(stream_begin(stream, FRAME_RESULT, &mark), path, &info, size >= 0 ? target : NULL, &names, attributes, follow);
    stream_finish(stream, mark);
    names_free(&names);
    free(attributes);
    free(path);
}

void operation_mkdir(struct stream *stream, struct mp_value body) {
    char *path;
    int64_t mode = 0755;
    bool parents = false;
    struct user owner;
    if (!take_int(stream, body, "mode", false, 0, 07777, &mode) || !take_flag(stream, body, "parents", &parents) ||
        !take_owner(stream, body, &owner) || !take_path(stream, body, "path", &path))
        return;
    int made = make_directory(path, (mode_t)mode, parents, &owner);
    if (made < 0) {
        answer(stream, -1, path);
        return;
    }
    size_t mark;
    struct buffer *out = stream_begin(stream, FRAME_RESULT, &mark);
    mp_write_map(out, 1);
    mp_write_str(out, "created");
    mp_write_bool(out, made == 1);
    stream_finish(stream, mark);
    free(path);
}

/* Two paths; frees nothing on failure since nothing is left to free. */
static bool take_two(struct stream *stream, struct mp_value body, const char *second, char **path, char **other) {
    if (!take_path(stream, body, second, other))
        return false;
    if (take_path(stream, body, "path", path))
        return true;
    free(*other);
    return false;
}

void operation_rename(struct stream *stream, struct mp_value body) {
    char *path, *to;
    if (!take_two(stream, body, "to", &path, &to))
        return;
    int result = rename(path, to);
    free(to);
    answer(stream, result, path);
}

void operation_symlink(struct stream *stream, struct mp_value body) {
    char *path, *target;
    if (!take_two(stream, body, "target", &path, &target))
        return;
    int result = symlink(target, path);
    free(target);
    answer(stream, result, path);
}

void operation_chmod(struct stream *stream, struct mp_value body) {
    char *path;
    int64_t mode = 0;
    if (take_int(stream, body, "mode", true, 0, 07777, &mode) && take_path(stream, body, "path", &path))
        answer(stream, chmod(path, (mode_t)mode), path);
}

void operation_chown(struct stream *stream, struct mp_value body) {
    char *path;
    struct user owner;
    if (take_owner(stream, body, &owner) && take_path(stream, body, "path", &path))
        answer(stream, chown(path, owner.uid, owner.gid), path);
}
