/* Reading an archive's headers: ustar, with the extensions of pax (records) and of GNU tar (long names, binary numbers). */
#ifndef AGENTENV_TAR_ENTRY_H
#define AGENTENV_TAR_ENTRY_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct tar_entry {
    char path[PATH_MAX]; /* relative, without "." and doubled slashes; empty: the root itself */
    char link[PATH_MAX]; /* as it is for a symlink; cleaned like `path` for a hard link */
    bool outside;        /* the path, or a hard link's target, is absolute or climbs out */
    char type;           /* '0' file, '1' hard link, '2' symlink, '3' char, '4' block, '5' directory, '6' fifo */
    uint64_t size;       /* of the content that follows */
    mode_t mode;
    uint64_t uid, gid;
    int64_t mtime;
    dev_t device;
};

/* Where the archive's bytes come from. */
struct tar_source {
    bool (*read)(void *from, void *bytes, size_t size); /* exactly `size` bytes, or false at the end */
    void *from;
};

/* The next entry. False at the end (`problem` NULL) and where the archive is no archive (`problem` says why). */
bool tar_next(const struct tar_source *source, struct tar_entry *entry, const char **problem);

#endif
