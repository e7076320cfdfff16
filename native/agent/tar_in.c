#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "beneath.h"
#include "files.h"
#include "job.h"
#include "operations.h"
#include "tar.h"
#include "tar_entry.h"

enum { PIECE = 65536 };

/* A directory gets its final mode and time when all is in it: before, it might not let us in, and every file would change the time. */
struct made_directory {
    struct made_directory *next;
    mode_t mode;
    int64_t mtime;
    char path[];
};

struct unpacker {
    struct job_output *output;
    struct user owner;
    bool archive_owners; /* the numbers in the archive decide, not `owner` */
    int root;
    int parent; /* of the entry before, since neighbours come together; -1: none */
    char parent_path[PATH_MAX];
    struct made_directory *directories;
    uint64_t entries;
    uint8_t piece[PIECE]; /* received, from `at` on not yet used */
    size_t at, size;
};

static _Noreturn void refuse(struct unpacker *unpacker, const struct tar_entry *entry, const char *why) {
    job_error(unpacker->output, "EXDEV", "archive entry '%.300s' %s", entry->path, why);
}

static _Noreturn void fail(struct unpacker *unpacker, const struct tar_entry *entry) {
    int problem = errno;
    if (problem == EXDEV || problem == ELOOP)
        refuse(unpacker, entry, "would leave the directory through a link");
    job_fail(unpacker->output, problem, "archive entry '%.300s'", entry->path);
}

/* The next bytes of the archive, at most `most`; 0 at its end. */
static size_t take_piece(struct unpacker *unpacker, const uint8_t **bytes, uint64_t most) {
    if (unpacker->at == unpacker->size) {
        ssize_t size;
        do
            size = read(unpacker->output->in, unpacker->piece, PIECE);
        while (size < 0 && errno == EINTR);
        unpacker->at = 0;
        unpacker->size = size > 0 ? (size_t)size : 0;
    }
    size_t size = unpacker->size - unpacker->at;
    size = size < most ? size : (size_t)most;
    *bytes = unpacker->piece + unpacker->at;
    unpacker->at += size;
    return size;
}

static bool read_exactly(void *unpacker, void *bytes, size_t size) {
    uint8_t *to = bytes;
    const uint8_t *from;
    while (size) {
        size_t part = take_piece(unpacker, &from, size);
        if (part == 0)
            return false;
        memcpy(to, from, part);
        to += part;
        size -= part;
    }
    return true;
}

static void skip(struct unpacker *unpacker, uint64_t size) {
    const uint8_t *ignored;
    while (size) {
        size_t part = take_piece(unpacker, &ignored, size);
        if (part == 0)
            job_error(unpacker->output, "EPROTO", "the archive ends in the middle of an entry");
        size -= part;
    }
}

static void skip_padding(struct unpacker *unpacker, uint64_t size) { skip(unpacker, (TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK); }

static void forget_parent(struct unpacker *unpacker) {
    if (unpacker->parent >= 0)
        close(unpacker->parent);
    unpacker->parent = -1;
}

/* The directory that the entry goes into, made where it is missing. */
static int open_parent(struct unpacker *unpacker, const struct tar_entry *entry, const char **name) {
    const char *slash = strrchr(entry->path, '/');
    size_t size = slash ? (size_t)(slash - entry->path) : 0;
    *name = slash ? slash + 1 : entry->path;
    if (unpacker->parent >= 0 && strlen(unpacker->parent_path) == size && memcmp(unpacker->parent_path, entry->path, size) == 0)
        return unpacker->parent;
    forget_parent(unpacker);
    memcpy(unpacker->parent_path, entry->path, size);
    unpacker->parent_path[size] = '\0';
    unpacker->parent = beneath_directory(unpacker->root, unpacker->parent_path, &unpacker->owner);
    if (unpacker->parent < 0)
        fail(unpacker, entry);
    return unpacker->parent;
}

static void give_to_owner(struct unpacker *unpacker, int directory, const char *name, const struct tar_entry *entry) {
    uid_t uid = unpacker->archive_owners ? (uid_t)entry->uid : unpacker->owner.uid;
    gid_t gid = unpacker->archive_owners ? (gid_t)entry->gid : unpacker->owner.gid;
    if ((uid != geteuid() || gid != getegid()) && fchownat(directory, name, uid, gid, AT_SYMLINK_NOFOLLOW) != 0)
        fail(unpacker, entry);
}

static void set_time(int directory, const char *name, int64_t mtime) {
    struct timespec times[2] = {{.tv_sec = mtime}, {.tv_sec = mtime}};
    if (utimensat(directory, name, times, AT_SYMLINK_NOFOLLOW) != 0)
        errno = 0; /* a time that the file system cannot hold is no reason to lose the file */
}

/* What stands where the new file shall be goes away first: nothing is ever written through it. */
static void make_room(struct unpacker *unpacker, int directory, const char *name, const struct tar_entry *entry) {
    if (unlinkat(directory, name, 0) != 0 && errno != ENOENT)
        fail(unpacker, entry);
}

static void unpack_file(struct unpacker *unpacker, const struct tar_entry *entry) {
    const char *name;
    const uint8_t *bytes;
    int directory = open_parent(unpacker, entry, &name);
    make_room(unpacker, directory, name, entry);
    int fd = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        fail(unpacker, entry);
    for (uint64_t left = entry->size; left;) {
        size_t part = take_piece(unpacker, &bytes, left);
        if (part == 0)
            job_error(unpacker->output, "EPROTO", "the archive ends in the middle of '%.300s'", entry->path);
        left -= part;
        for (ssize_t written; part; part -= (size_t)written, bytes += written)
            if ((written = write(fd, bytes, part)) < 0)
                fail(unpacker, entry);
    }
    give_to_owner(unpacker, directory, name, entry);
    if (fchmod(fd, entry->mode) != 0)
        fail(unpacker, entry);
    close(fd);
    set_time(directory, name, entry->mtime);
    skip_padding(unpacker, entry->size);
}

static void remember_directory(struct unpacker *unpacker, const struct tar_entry *entry) {
    size_t size = strlen(entry->path) + 1;
    struct made_directory *made = malloc(sizeof *made + size);
    if (!made)
        fail(unpacker, entry);
    *made = (struct made_directory){.next = unpacker->directories, .mode = entry->mode, .mtime = entry->mtime};
    memcpy(made->path, entry->path, size);
    unpacker->directories = made;
}

static void unpack_directory(struct unpacker *unpacker, const struct tar_entry *entry) {
    const char *name;
    int directory = open_parent(unpacker, entry, &name);
    if (mkdirat(directory, name, 0700) == 0) {
        give_to_owner(unpacker, directory, name, entry);
        remember_directory(unpacker, entry);
        return;
    }
    if (errno != EEXIST)
        fail(unpacker, entry);
    /* A directory that is there, or a link to one inside, is used as it is (think of /lib -> usr/lib); anything else makes room. */
    int there = beneath_open(unpacker->root, entry->path);
    if (there >= 0) {
        struct stat info;
        if (fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode))
            remember_directory(unpacker, entry);
        close(there);
        return;
    }
    make_room(unpacker, directory, name, entry);
    forget_parent(unpacker);
    unpack_directory(unpacker, entry);
}

static void unpack_symlink(struct unpacker *unpacker, const struct tar_entry *entry) {
    const char *name;
    int directory = open_parent(unpacker, entry, &name);
    make_room(unpacker, directory, name, entry);
    if (symlinkat(entry->link, directory, name) != 0)
        fail(unpacker, entry);
    give_to_owner(unpacker, directory, name, entry);
    set_time(directory, name, entry->mtime);
}

static void unpack_hard_link(struct unpacker *unpacker, struct tar_entry *entry) {
    const char *name, *slash = strrchr(entry->link, '/');
    char above[PATH_MAX];
    size_t size = slash ? (size_t)(slash - entry->link) : 0;
    memcpy(above, entry->link, size);
    above[size] = '\0';
    int from = beneath_open(unpacker->root, above);
    if (from < 0)
        fail(unpacker, entry);
    int directory = open_parent(unpacker, entry, &name);
    if (strcmp(entry->path, entry->link) != 0) {
        make_room(unpacker, directory, name, entry);
        if (linkat(from, slash ? slash + 1 : entry->link, directory, name, 0) != 0)
            fail(unpacker, entry);
    }
    close(from);
    /* POSIX lets a link carry its file's content again. */
    skip(unpacker, entry->size);
    skip_padding(unpacker, entry->size);
}

static void unpack_special(struct unpacker *unpacker, const struct tar_entry *entry, mode_t type) {
    const char *name;
    int directory = open_parent(unpacker, entry, &name);
    make_room(unpacker, directory, name, entry);
    if (mknodat(directory, name, type | (entry->mode & 0777), entry->device) != 0)
        fail(unpacker, entry);
    give_to_owner(unpacker, directory, name, entry);
    set_time(directory, name, entry->mtime);
}

static void unpack_entry(struct unpacker *unpacker, struct tar_entry *entry) {
    if (entry->outside)
        refuse(unpacker, entry, "would leave the directory");
    if (*entry->path == '\0') /* the directory itself */
        return;
    switch (entry->type) {
    case '5':
        unpack_directory(unpacker, entry);
        break;
    case '2':
        unpack_symlink(unpacker, entry);
        break;
    case '1':
        unpack_hard_link(unpacker, entry);
        break;
    case '3':
        unpack_special(unpacker, entry, S_IFCHR);
        break;
    case '4':
        unpack_special(unpacker, entry, S_IFBLK);
        break;
    case '6':
        unpack_special(unpacker, entry, S_IFIFO);
        break;
    default:
        unpack_file(unpacker, entry);
    }
    unpacker->entries++;
    if (entry->type != '0')
        forget_parent(unpacker);
}

static void finish_directories(struct unpacker *unpacker) {
    for (const struct made_directory *made = unpacker->directories; made; made = made->next) {
        int fd = beneath_open(unpacker->root, made->path);
        if (fd < 0)
            continue; /* a later entry took its place */
        if (fchmod(fd, made->mode) != 0)
            job_fail(unpacker->output, errno, "directory '%.300s'", made->path);
        set_time(unpacker->root, made->path, made->mtime);
        close(fd);
    }
}

struct request {
    const char *path;
    struct user owner;
    bool archive_owners;
};

static void work(struct job_output *output, void *argument) {
    static struct unpacker unpacker; /* too large for the stack; the process is a fresh copy for this archive alone */
    static struct tar_entry entry;
    const struct request *request = argument;
    size_t mark;
    const char *problem;
    unpacker.output = output;
    unpacker.owner = request->owner;
    unpacker.archive_owners = request->archive_owners;
    unpacker.parent = -1;
    umask(0);
    if (make_directory(request->path, 0755, true, &request->owner) < 0)
        job_fail(output, errno, "%.400s", request->path);
    unpacker.root = open(request->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (unpacker.root < 0)
        job_fail(output, errno, "%.400s", request->path);
    const struct tar_source archive = {read_exactly, &unpacker};
    while (tar_next(&archive, &entry, &problem))
        unpack_entry(&unpacker, &entry);
    if (problem)
        job_error(output, "EPROTO", "%s", problem);
    finish_directories(&unpacker);
    /* Whatever follows the end of the archive is read too, or the sender would wait for credit for ever. */
    const uint8_t *ignored;
    while (take_piece(&unpacker, &ignored, PIECE))
        ;
    struct buffer *out = job_begin(output, FRAME_RESULT, &mark);
    mp_write_map(out, 1);
    mp_write_str(out, "entries");
    mp_write_uint(out, unpacker.entries);
    job_finish(output, mark);
}

void operation_tar_in(struct stream *stream, struct mp_value body) {
    struct request request = {0};
    char *path;
    if (!take_flag(stream, body, "owners", &request.archive_owners) || !take_owner(stream, body, &request.owner) ||
        !take_path(stream, body, "path", &path))
        return;
    request.path = path;
    job_start(stream, true, work, &request);
    free(path);
}
