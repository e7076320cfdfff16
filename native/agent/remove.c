#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "job.h"
#include "operations.h"

struct removal {
    const char *path;
    bool missing_ok;
};

static int remove_below(int directory, const char *name);

/* Empties the directory. What others put into it meanwhile is left, and then it is not empty. */
static int remove_content(int fd) {
    DIR *stream = fdopendir(fd);
    if (!stream) {
        close(fd);
        return -1;
    }
    int result = 0;
    struct dirent *entry;
    while (result == 0 && (errno = 0, entry = readdir(stream)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            result = remove_below(dirfd(stream), entry->d_name);
    int problem = errno;
    closedir(stream);
    errno = problem;
    return result == 0 && problem ? -1 : result;
}

/* Removes one name, a directory with all that it contains. Links are removed, never followed. */
static int remove_below(int directory, const char *name) {
    if (unlinkat(directory, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -1;
    int fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : -1;
    if (remove_content(fd) != 0)
        return -1;
    return unlinkat(directory, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : -1;
}

static void work(struct job_output *output, void *argument) {
    const struct removal *removal = argument;
    struct stat info;
    if (lstat(removal->path, &info) != 0 && !(errno == ENOENT && removal->missing_ok))
        job_fail(output, errno, "%.400s", removal->path);
    if (remove_below(AT_FDCWD, removal->path) != 0)
        job_fail(output, errno, "%.400s", removal->path);
    size_t mark;
    mp_write_map(job_begin(output, FRAME_RESULT, &mark), 0);
    job_finish(output, mark);
}

/* Keeps errno when it is none: that of the failed unlink is the one to tell. */
static bool is_directory(const char *path) {
    struct stat info;
    int problem = errno;
    bool answer = lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
    errno = problem;
    return answer;
}

void operation_remove(struct stream *stream, struct mp_value body) {
    struct removal removal = {0};
    bool recursive = false;
    char *path;
    if (!take_flag(stream, body, "recursive", &recursive) || !take_flag(stream, body, "missing_ok", &removal.missing_ok) ||
        !take_path(stream, body, "path", &path))
        return;
    removal.path = path;
    if (strspn(path, "/") == strlen(path))
        stream_fail(stream, EBUSY, "/");
    else if (unlink(path) == 0 || (errno == ENOENT && removal.missing_ok))
        stream_done(stream);
    else if (recursive && is_directory(path))
        job_start(stream, false, work, &removal);
    else if (is_directory(path) && rmdir(path) == 0)
        stream_done(stream);
    else
        stream_fail(stream, errno, "%.400s", path);
    free(path);
}
