#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent.h"
#include "files.h"
#include "operations.h"

struct download {
    int fd;
    int64_t left; /* bytes still wanted; negative: all */
    uint64_t size;
};

static void free_download(struct download *download) {
    close(download->fd);
    free(download);
}

static void tell_size(struct stream *stream, uint64_t size) {
    size_t mark;
    struct buffer *out = stream_begin(stream, FRAME_RESULT, &mark);
    mp_write_map(out, 1);
    mp_write_str(out, "size");
    mp_write_uint(out, size);
    stream_finish(stream, mark);
}

/* Sends one piece and queues for the next turn. */
static void pump(struct stream *stream) {
    struct download *download = stream->state;
    uint8_t *scratch = stream_agent(stream)->scratch;
    size_t room = stream_room(stream);
    if (download->left >= 0 && (uint64_t)download->left < room)
        room = (size_t)download->left;
    ssize_t size = 0;
    if (download->left != 0) {
        if (room == 0) {
            stream_wait(stream);
            return;
        }
        do
            size = read(download->fd, scratch, room);
        while (size < 0 && errno == EINTR);
    }
    if (size > 0) {
        stream_send(stream, FRAME_DATA, scratch, (size_t)size);
        download->size += (uint64_t)size;
        if (download->left > 0)
            download->left -= size;
        stream_wait(stream);
        return;
    }
    int problem = errno;
    uint64_t sent = download->size;
    free_download(download);
    if (size == 0)
        tell_size(stream, sent);
    else
        stream_fail(stream, problem, "read");
}

static void abandon(struct stream *stream) { free_download(stream->state); }

static void cancel(struct stream *stream) {
    abandon(stream);
    stream_error(stream, "ECANCELED", "cancelled");
}

static const struct stream_handler READ_HANDLER = {.pump = pump, .cancel = cancel, .abandon = abandon};

/* Opens as that user would: the kernel checks the permissions of the file-system identity. */
static int open_as(const char *path, const struct user *user) {
    if (!user || user->uid == geteuid())
        return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    gid_t before[GROUPS_MOST];
    int count = getgroups(GROUPS_MOST, before);
    if (count < 0 || syscall(SYS_setgroups, user->group_count, user->groups) != 0)
        return -1;
    setfsgid(user->gid);
    setfsuid(user->uid);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int problem = errno;
    setfsuid(geteuid());
    setfsgid(getegid());
    syscall(SYS_setgroups, count, before);
    errno = problem;
    return fd;
}

/* Why this cannot be read from the start to an end, or 0. */
static int refusal(int fd, int64_t offset) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        return errno;
    if (S_ISDIR(info.st_mode))
        return EISDIR;
    if (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode))
        return EINVAL;
    return offset > 0 && lseek(fd, offset, SEEK_SET) < 0 ? errno : 0;
}

static void start(struct stream *stream, const char *path, const struct user *user, int64_t offset, int64_t length) {
    struct download *download = calloc(1, sizeof *download);
    int fd = download ? open_as(path, user) : -1;
    int problem = fd < 0 ? errno : refusal(fd, offset);
    if (problem) {
        if (fd >= 0)
            close(fd);
        free(download);
        stream_fail(stream, problem, "%.400s", path);
        return;
    }
    *download = (struct download){.fd = fd, .left = length};
    stream->handler = &READ_HANDLER;
    stream->state = download;
    pump(stream);
}

void operation_read(struct stream *stream, struct mp_value body) {
    int64_t offset = 0, length = -1;
    char *path, *name;
    struct user user;
    if (!take_int(stream, body, "offset", false, 0, INT64_MAX, &offset) || !take_int(stream, body, "length", false, 0, INT64_MAX, &length) ||
        !take_user(stream, body, "user", &name))
        return;
    if (name && !user_find(name, &user))
        stream_fail(stream, errno, "user '%.64s'", name);
    else if (take_path(stream, body, "path", &path)) {
        start(stream, path, name ? &user : NULL, offset, length);
        free(path);
    }
    free(name);
}
