#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "agent.h"
#include "files.h"
#include "operations.h"

enum { LINKS_MOST = 40, TEMPORARY_TRIES = 16 };

/* A file on its way. It grows under another name beside the target and takes its place at the end; only what cannot be
 * replaced (a device, a file of /proc) is written directly. */
struct upload {
    int fd;
    char target[PATH_MAX];
    char temporary[PATH_MAX]; /* empty: written directly */
    struct user owner;
    struct stat old;          /* of the file that is replaced */
    bool replaces, append, has_mode;
    mode_t mode;
    uint64_t size;
};

static void discard(struct upload *upload) {
    close(upload->fd);
    if (*upload->temporary)
        unlink(upload->temporary);
    free(upload);
}

static void fail(struct stream *stream, struct upload *upload, int problem) {
    char target[401];
    snprintf(target, sizeof target, "%.400s", upload->target);
    discard(upload);
    stream_fail(stream, problem, "%s", target);
}

static int write_all(int fd, const uint8_t *bytes, size_t size) {
    while (size) {
        ssize_t written = write(fd, bytes, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return -1;
        bytes += written;
        size -= (size_t)written;
    }
    return 0;
}

static void on_data(struct stream *stream, const uint8_t *bytes, size_t size) {
    struct upload *upload = stream->state;
    if (write_all(upload->fd, bytes, size) != 0) {
        fail(stream, upload, errno);
        return;
    }
    upload->size += size;
    stream_grant(stream, size);
}

static void abandon(struct stream *stream) { discard(stream->state); }

static void cancel(struct stream *stream) {
    abandon(stream);
    stream_error(stream, "ECANCELED", "cancelled; the file is as it was");
}

/* Copies the temporary file's content into the target, for what cannot be done by a rename: appending, and a target that is a mount point. */
static int copy_into_target(struct upload *upload, int flags) {
    uint8_t piece[16384];
    int fd = open(upload->target, O_WRONLY | O_CLOEXEC | flags, 0600);
    if (fd < 0)
        return -1;
    ssize_t size = lseek(upload->fd, 0, SEEK_SET) == 0 ? 1 : -1;
    while (size > 0 && (size = read(upload->fd, piece, sizeof piece)) > 0)
        if (write_all(fd, piece, (size_t)size) != 0)
            size = -1;
    int problem = errno;
    close(fd);
    errno = problem;
    return size < 0 ? -1 : 0;
}

static int set_attributes(const struct upload *upload) {
    uid_t uid = upload->replaces ? upload->old.st_uid : upload->owner.uid;
    gid_t gid = upload->replaces ? upload->old.st_gid : upload->owner.gid;
    mode_t mode = upload->replaces && !upload->has_mode ? upload->old.st_mode & 07777 : upload->mode;
    if ((uid != geteuid() || gid != getegid()) && fchown(upload->fd, uid, gid) != 0)
        return -1;
    return fchmod(upload->fd, mode);
}

static int take_place(struct upload *upload) {
    if (upload->append && upload->replaces)
        return copy_into_target(upload, O_APPEND) != 0 ? -1 : unlink(upload->temporary);
    if (set_attributes(upload) != 0)
        return -1;
    if (rename(upload->temporary, upload->target) == 0)
        return 0;
    if (errno != EBUSY && errno != EXDEV)
        return -1;
    return copy_into_target(upload, O_TRUNC) != 0 ? -1 : unlink(upload->temporary);
}

static void on_end(struct stream *stream) {
    struct upload *upload = stream->state;
    size_t mark;
    if (*upload->temporary && take_place(upload) != 0) {
        fail(stream, upload, errno);
        return;
    }
    *upload->temporary = '\0';
    struct buffer *out = stream_begin(stream, FRAME_RESULT, &mark);
    mp_write_map(out, 1);
    mp_write_str(out, "size");
    mp_write_uint(out, upload->size);
    discard(upload);
    stream_finish(stream, mark);
}

static const struct stream_handler WRITE_HANDLER = {.data = on_data, .end = on_end, .cancel = cancel, .abandon = abandon};

/* Follows the links that `target` is, so that the file they mean is replaced and not the link. */
static int follow_links(char target[PATH_MAX]) {
    char value[PATH_MAX];
    for (int links = 0; links < LINKS_MOST; links++) {
        ssize_t size = readlink(target, value, sizeof value - 1);
        if (size < 0)
            return errno == EINVAL || errno == ENOENT ? 0 : -1;
        value[size] = '\0';
        char *slash = strrchr(target, '/');
        size_t directory = value[0] == '/' || !slash ? 0 : (size_t)(slash - target) + 1;
        if (directory + (size_t)size >= PATH_MAX) {
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(target + directory, value, (size_t)size + 1);
    }
    errno = ELOOP;
    return -1;
}

static int open_temporary(struct upload *upload) {
    char *slash = strrchr(upload->target, '/');
    int directory = slash ? (int)(slash - upload->target) + 1 : 0;
    for (int attempt = 0; attempt < TEMPORARY_TRIES; attempt++) {
        uint64_t number = 0;
        if (getrandom(&number, sizeof number, GRND_NONBLOCK) < 0)
            number = (uint64_t)(monotonic_seconds() * 1e9) + (unsigned)attempt;
        int size = snprintf(upload->temporary, PATH_MAX, "%.*s.agentenv-%016llx", directory, upload->target, (unsigned long long)number);
        if (size >= PATH_MAX) {
            errno = ENAMETOOLONG;
            break;
        }
        upload->fd = open(upload->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (upload->fd >= 0 || errno != EEXIST)
            break;
    }
    if (upload->fd < 0)
        *upload->temporary = '\0';
    return upload->fd;
}

/* Whether the target may be replaced by another file at all. */
static int open_upload(struct upload *upload) {
    upload->replaces = stat(upload->target, &upload->old) == 0;
    if (upload->replaces && S_ISDIR(upload->old.st_mode)) {
        errno = EISDIR;
        return -1;
    }
    bool plain = !upload->replaces || S_ISREG(upload->old.st_mode);
    if (plain && open_temporary(upload) >= 0)
        return 0;
    bool directory_refuses = errno == EACCES || errno == EPERM || errno == EROFS || errno == ENOENT || errno == EOPNOTSUPP;
    if (plain && !(upload->replaces && directory_refuses))
        return -1;
    upload->fd = open(upload->target, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (upload->append ? O_APPEND : O_TRUNC));
    return upload->fd < 0 ? -1 : 0;
}

static void start(struct stream *stream, struct upload *upload, bool parents) {
    size_t size = strlen(upload->target);
    if (upload->target[size - 1] == '/')
        errno = EISDIR;
    else if ((!parents || make_parents(upload->target, &upload->owner) == 0) && follow_links(upload->target) == 0 && open_upload(upload) == 0) {
        stream->handler = &WRITE_HANDLER;
        stream->state = upload;
        return;
    }
    int problem = errno;
    stream_fail(stream, problem, "%.400s", upload->target);
    free(upload);
}

void operation_write(struct stream *stream, struct mp_value body) {
    struct upload *upload = calloc(1, sizeof *upload);
    int64_t mode = -1;
    bool parents = false;
    char *path;
    if (!upload) {
        stream_fail(stream, ENOMEM, "write");
        return;
    }
    upload->fd = -1;
    if (!take_int(stream, body, "mode", false, 0, 07777, &mode) || !take_flag(stream, body, "append", &upload->append) ||
        !take_flag(stream, body, "parents", &parents) || !take_owner(stream, body, &upload->owner) || !take_path(stream, body, "path", &path)) {
        free(upload);
        return;
    }
    upload->has_mode = mode >= 0;
    upload->mode = upload->has_mode ? (mode_t)mode : 0644;
    snprintf(upload->target, sizeof upload->target, "%s", path);
    free(path);
    start(stream, upload, parents);
}
