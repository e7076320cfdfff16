#include <string.h>
#include <sys/stat.h>

#include "files.h"

static const char *type_name(mode_t mode) {
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return "dir";
    case S_IFLNK:
        return "symlink";
    case S_IFIFO:
        return "fifo";
    case S_IFSOCK:
        return "socket";
    case S_IFCHR:
        return "char";
    case S_IFBLK:
        return "block";
    default:
        return "file";
    }
}

static void write_number(struct buffer *out, const char *key, uint64_t number) {
    mp_write_str(out, key);
    mp_write_uint(out, number);
}

/* The last component, without a trailing slash; "/" for the root. */
static void write_name(struct buffer *out, const char *path) {
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/')
        size--;
    size_t start = size;
    while (start > 0 && path[start - 1] != '/')
        start--;
    if (start == size)
        start = 0;
    mp_write_str(out, "name");
    mp_write_text(out, path + start, size - start);
}

void entry_write(struct buffer *out, const char *path, const struct stat *info, const char *target, struct names *names, const char *prefix, bool follow) {
    mp_write_map(out, prefix ? 12 : 11);
    write_name(out, path);
    mp_write_text_pair(out, "path", path);
    mp_write_text_pair(out, "type", type_name(info->st_mode));
    write_number(out, "size", (uint64_t)info->st_size);
    write_number(out, "mode", info->st_mode & 07777);
    write_number(out, "uid", info->st_uid);
    write_number(out, "gid", info->st_gid);
    mp_write_text_pair(out, "user", names_user(names, info->st_uid));
    mp_write_text_pair(out, "group", names_group(names, info->st_gid));
    mp_write_str(out, "mtime");
    mp_write_double(out, (double)info->st_mtim.tv_sec + (double)info->st_mtim.tv_nsec / 1e9);
    mp_write_text_pair(out, "target", target);
    if (prefix) {
        mp_write_str(out, "attributes");
        attributes_write(out, path, follow, prefix);
    }
}
