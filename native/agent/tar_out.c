#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "job.h"
#include "operations.h"
#include "tar.h"
#include "users.h"

enum { PIECE = 65536, LINK_BUCKETS = 1024 };

/* A file with several names that was packed under one of them. */
struct packed_link {
    struct packed_link *next;
    dev_t device;
    ino_t inode;
    char path[];
};

struct packer {
    struct job_output *output;
    struct names names;
    struct packed_link *links[LINK_BUCKETS];
    uint8_t piece[PIECE]; /* of the archive, not yet sent */
    size_t used;
    uint64_t entries;
    char *path; /* of the entry at hand, relative to what is packed */
    size_t path_capacity;
};

static void send_piece(struct packer *packer) {
    if (packer->used)
        job_data(packer->output, packer->piece, packer->used);
    packer->used = 0;
}

static void put(struct packer *packer, const void *bytes, size_t size) {
    const uint8_t *at = bytes;
    while (size) {
        size_t part = PIECE - packer->used < size ? PIECE - packer->used : size;
        memcpy(packer->piece + packer->used, at, part);
        packer->used += part;
        at += part;
        size -= part;
        if (packer->used == PIECE)
            send_piece(packer);
    }
}

static void pad(struct packer *packer, uint64_t size) {
    static const uint8_t ZEROS[TAR_BLOCK];
    put(packer, ZEROS, (TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK);
}

/* An octal number, or false when it does not fit. */
static bool octal(char *field, size_t size, uint64_t value) {
    for (size_t i = size - 1; i-- > 0; value >>= 3)
        field[i] = (char)('0' + (value & 7));
    return value == 0;
}

static void put_header(struct packer *packer, struct tar_header *header) {
    memcpy(header->magic, "ustar", 6);
    memcpy(header->version, "00", 2);
    octal(header->checksum, 7, tar_checksum(header));
    header->checksum[7] = ' ';
    put(packer, header, sizeof *header);
}

/* A pax record: its own length in decimal, a blank, key=value, a newline. */
static void add_record(struct buffer *records, const char *key, const char *value) {
    size_t body = strlen(key) + strlen(value) + 3, length = body + 1, digits;
    char number[24];
    do {
        digits = (size_t)snprintf(number, sizeof number, "%zu", length);
        length = body + digits;
    } while ((size_t)snprintf(number, sizeof number, "%zu", length) != digits);
    buffer_append(records, number, digits);
    buffer_append(records, " ", 1);
    buffer_append(records, key, strlen(key));
    buffer_append(records, "=", 1);
    buffer_append(records, value, strlen(value));
    buffer_append(records, "\n", 1);
}

static void add_number(struct buffer *records, const char *key, uint64_t value) {
    char number[24];
    snprintf(number, sizeof number, "%llu", (unsigned long long)value);
    add_record(records, key, number);
}

/* Fills a text field; what does not fit goes into a record under `key`. */
static void fill_text(char *field, size_t size, const char *text, struct buffer *records, const char *key) {
    size_t length = strlen(text);
    memcpy(field, text, length < size ? length : size);
    if (length > size)
        add_record(records, key, text);
}

static void fill_number(char *field, size_t size, uint64_t value, struct buffer *records, const char *key) {
    if (!octal(field, size, value)) {
        octal(field, size, 0);
        add_number(records, key, value);
    }
}

static void put_records(struct packer *packer, struct buffer *records) {
    if (records->failed)
        job_fail(packer->output, ENOMEM, "tar");
    if (records->length) {
        struct tar_header header = {.name = "pax", .mode = "0000644", .type = 'x'};
        octal(header.uid, sizeof header.uid, 0);
        octal(header.gid, sizeof header.gid, 0);
        octal(header.mtime, sizeof header.mtime, 0);
        octal(header.size, sizeof header.size, records->length);
        put_header(packer, &header);
        put(packer, buffer_head(records), records->length);
        pad(packer, records->length);
    }
    buffer_release(records);
}

static void put_entry(struct packer *packer, char type, const char *name, const struct stat *info, uint64_t size, const char *link) {
    struct tar_header header = {.type = type};
    struct buffer records = {0};
    const char *user = names_user(&packer->names, info->st_uid), *group = names_group(&packer->names, info->st_gid);
    fill_text(header.name, sizeof header.name, name, &records, "path");
    fill_text(header.link, sizeof header.link, link, &records, "linkpath");
    octal(header.mode, sizeof header.mode, info->st_mode & 07777);
    fill_number(header.uid, sizeof header.uid, info->st_uid, &records, "uid");
    fill_number(header.gid, sizeof header.gid, info->st_gid, &records, "gid");
    fill_number(header.size, sizeof header.size, size, &records, "size");
    fill_number(header.mtime, sizeof header.mtime, info->st_mtime > 0 ? (uint64_t)info->st_mtime : 0, &records, "mtime");
    snprintf(header.user, sizeof header.user, "%s", user ? user : "");
    snprintf(header.group, sizeof header.group, "%s", group ? group : "");
    if (type == '3' || type == '4') {
        octal(header.device_major, sizeof header.device_major, major(info->st_rdev));
        octal(header.device_minor, sizeof header.device_minor, minor(info->st_rdev));
    }
    put_records(packer, &records);
    put_header(packer, &header);
    packer->entries++;
}

/* The name under which the same file was packed before, or NULL; then it is remembered. */
static const char *earlier_name(struct packer *packer, const struct stat *info) {
    struct packed_link **bucket = &packer->links[info->st_ino % LINK_BUCKETS];
    for (struct packed_link *link = *bucket; link; link = link->next)
        if (link->device == info->st_dev && link->inode == info->st_ino)
            return link->path;
    size_t size = strlen(packer->path) + 1;
    struct packed_link *link = malloc(sizeof *link + size);
    if (!link)
        job_fail(packer->output, ENOMEM, "tar");
    *link = (struct packed_link){.next = *bucket, .device = info->st_dev, .inode = info->st_ino};
    memcpy(link->path, packer->path, size);
    *bucket = link;
    return NULL;
}

/* The header has promised a size: a file that shrinks meanwhile is filled up with zeros, one that grows is cut. */
static void put_content(struct packer *packer, int fd, uint64_t size) {
    uint8_t bytes[16384];
    for (uint64_t left = size; left;) {
        size_t wanted = left < sizeof bytes ? (size_t)left : sizeof bytes;
        ssize_t got = read(fd, bytes, wanted);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            job_fail(packer->output, errno, "%.400s", packer->path);
        if (got == 0) {
            memset(bytes, 0, wanted);
            got = (ssize_t)wanted;
        }
        put(packer, bytes, (size_t)got);
        left -= (uint64_t)got;
    }
    pad(packer, size);
}

static void pack_file(struct packer *packer, int directory, const char *name, const struct stat *seen) {
    struct stat info;
    const char *earlier = seen->st_nlink > 1 ? earlier_name(packer, seen) : NULL;
    if (earlier) {
        put_entry(packer, '1', packer->path, seen, 0, earlier);
        return;
    }
    int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return;
    if (fd < 0 || fstat(fd, &info) != 0)
        job_fail(packer->output, errno, "%.400s", packer->path);
    uint64_t size = S_ISREG(info.st_mode) ? (uint64_t)info.st_size : 0;
    put_entry(packer, '0', packer->path, &info, size, "");
    put_content(packer, fd, size);
    close(fd);
}

static void pack(struct packer *packer, int directory, const char *name, size_t path_size);

static void pack_content(struct packer *packer, int fd, size_t path_size) {
    DIR *stream = fdopendir(fd);
    struct dirent *entry;
    if (!stream)
        job_fail(packer->output, errno, "%.400s", packer->path);
    while ((entry = readdir(stream)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            pack(packer, fd, entry->d_name, path_size);
    closedir(stream);
}

static void pack_directory(struct packer *packer, int directory, const char *name, size_t path_size, const struct stat *info) {
    int fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return;
    if (fd < 0)
        job_fail(packer->output, errno, "%.400s", packer->path);
    memcpy(packer->path + path_size, "/", 2);
    put_entry(packer, '5', packer->path, info, 0, "");
    pack_content(packer, fd, path_size + 1);
}

/* Sets the path to its first `path_size` bytes and the name; room for a slash is left behind it. */
static size_t set_path(struct packer *packer, size_t path_size, const char *name) {
    size_t size = strlen(name);
    if (path_size + size + 2 > packer->path_capacity) {
        packer->path_capacity = 2 * (path_size + size + 2);
        packer->path = realloc(packer->path, packer->path_capacity);
        if (!packer->path)
            job_fail(packer->output, ENOMEM, "tar");
    }
    memcpy(packer->path + path_size, name, size + 1);
    return path_size + size;
}

/* Packs one name; a file that has gone meanwhile is left out, and so are sockets, which no archive can hold. */
static void pack(struct packer *packer, int directory, const char *name, size_t path_size) {
    struct stat info;
    char target[PATH_MAX];
    size_t size = set_path(packer, path_size, name);
    if (fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    if (S_ISDIR(info.st_mode)) {
        pack_directory(packer, directory, name, size, &info);
    } else if (S_ISREG(info.st_mode)) {
        pack_file(packer, directory, name, &info);
    } else if (S_ISLNK(info.st_mode)) {
        ssize_t length = readlinkat(directory, name, target, sizeof target - 1);
        if (length < 0)
            return;
        target[length] = '\0';
        put_entry(packer, '2', packer->path, &info, 0, target);
    } else if (!S_ISSOCK(info.st_mode)) {
        put_entry(packer, S_ISCHR(info.st_mode) ? '3' : S_ISBLK(info.st_mode) ? '4' : '6', packer->path, &info, 0, "");
    }
}

/* The last component of a path, so that a single file is packed under its own name. */
static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void pack_root(struct packer *packer, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0)
        job_fail(packer->output, errno, "%.400s", path);
    set_path(packer, 0, S_ISDIR(info.st_mode) ? "" : last_name(path));
    if (S_ISDIR(info.st_mode)) {
        pack_content(packer, fd, 0);
    } else if (S_ISREG(info.st_mode)) {
        put_entry(packer, '0', packer->path, &info, (uint64_t)info.st_size, "");
        put_content(packer, fd, (uint64_t)info.st_size);
    } else {
        job_error(packer->output, "EINVAL", "%.400s is neither a directory nor a file", path);
    }
}

static void work(struct job_output *output, void *argument) {
    static const uint8_t END_OF_ARCHIVE[2 * TAR_BLOCK];
    static struct packer packer; /* too large for the stack; the process is a fresh copy for this archive alone */
    size_t mark;
    packer.output = output;
    pack_root(&packer, argument);
    put(&packer, END_OF_ARCHIVE, sizeof END_OF_ARCHIVE);
    send_piece(&packer);
    struct buffer *out = job_begin(output, FRAME_RESULT, &mark);
    mp_write_map(out, 1);
    mp_write_str(out, "entries");
    mp_write_uint(out, packer.entries);
    job_finish(output, mark);
}

void operation_tar_out(struct stream *stream, struct mp_value body) {
    char *path;
    if (!take_path(stream, body, "path", &path))
        return;
    job_start(stream, false, work, path);
    free(path);
}
