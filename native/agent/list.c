#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "job.h"
#include "operations.h"

/* Entries are gathered into events of about this size. */
enum { EVENT_SIZE = 16384 };

struct listing {
    struct job_output *output;
    struct names names;
    struct buffer entries; /* of the event to come */
    uint32_t pending;
    uint64_t count;
    const char *attributes; /* the beginning of the names of those that are told, NULL: none */
    char *path;             /* of the entry at hand, as the host shall see it */
    size_t path_capacity;
};

static void send_entries(struct listing *listing) {
    if (listing->pending == 0)
        return;
    size_t mark;
    struct buffer *out = job_begin(listing->output, FRAME_EVENT, &mark);
    mp_write_map(out, 2);
    mp_write_str(out, "event");
    mp_write_str(out, "entries");
    mp_write_str(out, "entries");
    mp_write_array(out, listing->pending);
    buffer_append(out, buffer_head(&listing->entries), listing->entries.length);
    job_commit(listing->output, mark);
    buffer_consume(&listing->entries, listing->entries.length);
    listing->pending = 0;
}

/* Puts "/name" behind the first `size` bytes of the path; returns the new length. */
static size_t extend_path(struct listing *listing, size_t size, const char *name) {
    size_t more = strlen(name);
    if (size + more + 2 > listing->path_capacity) {
        listing->path_capacity = 2 * (size + more + 2);
        listing->path = realloc(listing->path, listing->path_capacity);
        if (!listing->path)
            job_fail(listing->output, ENOMEM, "list");
    }
    if (size == 0 || listing->path[size - 1] != '/')
        listing->path[size++] = '/';
    memcpy(listing->path + size, name, more + 1);
    return size + more;
}

static void add_entry(struct listing *listing, int directory, const char *name, const struct stat *info) {
    char target[PATH_MAX];
    ssize_t size = S_ISLNK(info->st_mode) ? readlinkat(directory, name, target, sizeof target - 1) : -1;
    if (size >= 0)
        target[size] = '\0';
    entry_write(&listing->entries, listing->path, info, size >= 0 ? target : NULL, &listing->names, listing->attributes, false);
    listing->pending++;
    listing->count++;
    if (listing->entries.length >= EVENT_SIZE)
        send_entries(listing);
}

/* A file that disappears while its directory is read is simply not listed. */
static void list_directory(struct listing *listing, int fd, size_t path_size, int64_t depth) {
    DIR *stream = fdopendir(fd);
    if (!stream)
        job_fail(listing->output, errno, "%.400s", listing->path);
    struct dirent *entry;
    struct stat info;
    while ((entry = readdir(stream))) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || fstatat(fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        size_t size = extend_path(listing, path_size, name);
        add_entry(listing, fd, name, &info);
        if (depth <= 1 || !S_ISDIR(info.st_mode))
            continue;
        int child = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (child >= 0)
            list_directory(listing, child, size, depth - 1);
    }
    closedir(stream);
}

struct request {
    const char *path, *attributes;
    int64_t depth;
};

static void work(struct job_output *output, void *argument) {
    const struct request *request = argument;
    size_t size = strlen(request->path), mark;
    struct listing listing = {.output = output, .attributes = request->attributes, .path = strdup(request->path), .path_capacity = size + 1};
    int fd = open(request->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || !listing.path)
        job_fail(output, errno, "%.400s", request->path);
    list_directory(&listing, fd, size, request->depth);
    send_entries(&listing);
    struct buffer *out = job_begin(output, FRAME_RESULT, &mark);
    mp_write_map(out, 1);
    mp_write_str(out, "count");
    mp_write_uint(out, listing.count);
    job_finish(output, mark);
}

void operation_list(struct stream *stream, struct mp_value body) {
    struct request request = {.depth = 1};
    char *path, *attributes;
    if (!take_int(stream, body, "depth", false, 1, INT32_MAX, &request.depth) || !take_attributes(stream, body, "attributes", false, &attributes))
        return;
    if (take_path(stream, body, "path", &path)) {
        request.path = path;
        request.attributes = attributes;
        job_start(stream, false, work, &request);
        free(path);
    }
    free(attributes);
}
