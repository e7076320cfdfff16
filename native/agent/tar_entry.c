#include "tar_entry.h"

#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "tar.h"

enum { EXTENSION_MOST = 1 << 20 };

/* What the extensions before a header say in place of it. */
struct overrides {
    char path[PATH_MAX], link[PATH_MAX];
    bool has_path, has_link, has_size, has_mtime, has_uid, has_gid;
    uint64_t size, uid, gid;
    int64_t mtime;
};

/* An octal number, or (GNU) a binary one of which the first byte's top bit is set. */
static bool read_number(const char *field, size_t size, uint64_t *number) {
    const unsigned char *at = (const unsigned char *)field;
    *number = 0;
    if (at[0] & 0x80) {
        *number = at[0] & 0x3f;
        for (size_t i = 1; i < size; i++) {
            if (*number >> 56)
                return false;
            *number = *number << 8 | at[i];
        }
        return true;
    }
    size_t i = 0;
    while (i < size && at[i] == ' ')
        i++;
    for (; i < size && at[i] >= '0' && at[i] <= '7'; i++)
        *number = *number << 3 | (uint64_t)(at[i] - '0');
    return i == size || at[i] == '\0' || at[i] == ' ';
}

static bool copy_text(char to[PATH_MAX], const char *from, size_t size) {
    size_t length = strnlen(from, size);
    if (length >= PATH_MAX)
        return false;
    memcpy(to, from, length);
    to[length] = '\0';
    return true;
}

static bool apply_record(struct overrides *overrides, const char *key, const char *value, size_t size) {
    if (strcmp(key, "path") == 0)
        return overrides->has_path = copy_text(overrides->path, value, size);
    if (strcmp(key, "linkpath") == 0)
        return overrides->has_link = copy_text(overrides->link, value, size);
    if (strcmp(key, "size") == 0) {
        overrides->has_size = true;
        overrides->size = strtoull(value, NULL, 10);
    } else if (strcmp(key, "mtime") == 0) {
        overrides->has_mtime = true;
        overrides->mtime = strtoll(value, NULL, 10);
    } else if (strcmp(key, "uid") == 0) {
        overrides->has_uid = true;
        overrides->uid = strtoull(value, NULL, 10);
    } else if (strcmp(key, "gid") == 0) {
        overrides->has_gid = true;
        overrides->gid = strtoull(value, NULL, 10);
    }
    return true;
}

/* Records "LENGTH key=value\n"; each is cut up in place. */
static bool read_records(struct overrides *overrides, char *text, size_t size) {
    while (size) {
        char *end, *equals;
        unsigned long long length = strtoull(text, &end, 10);
        if (*end != ' ' || length > size || length < (size_t)(end - text) + 3 || text[length - 1] != '\n')
            return false;
        text[length - 1] = '\0';
        char *key = end + 1;
        equals = strchr(key, '=');
        if (!equals)
            return false;
        *equals = '\0';
        if (!apply_record(overrides, key, equals + 1, (size_t)(text + length - 1 - (equals + 1))))
            return false;
        text += length;
        size -= length;
    }
    return true;
}

/* Reads the content of an extension header, to be freed; NULL: too long, or the archive ends. */
static char *read_extension(const struct tar_source *source, uint64_t size) {
    char padding[TAR_BLOCK];
    if (size > EXTENSION_MOST)
        return NULL;
    char *text = malloc((size_t)size + 1);
    if (!text || !source->read(source->from, text, (size_t)size) ||
        !source->read(source->from, padding, (TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK)) {
        free(text);
        return NULL;
    }
    text[size] = '\0';
    return text;
}

static bool apply_extension(const struct tar_source *source, char type, uint64_t size, struct overrides *overrides) {
    char *text = read_extension(source, size);
    bool good = text != NULL;
    if (good && type == 'x')
        good = read_records(overrides, text, (size_t)size);
    else if (good && type == 'L')
        good = overrides->has_path = copy_text(overrides->path, text, (size_t)size);
    else if (good && type == 'K')
        good = overrides->has_link = copy_text(overrides->link, text, (size_t)size);
    free(text); /* 'g', defaults for all that follows, says nothing that we need */
    return good;
}

/* Copies the path without ".", empty components and a trailing slash. False when it is absolute or has "..". */
static bool clean(char path[PATH_MAX], const char *raw) {
    size_t used = 0;
    bool inside = raw[0] != '/';
    while (*raw) {
        size_t size = strcspn(raw, "/");
        if (size == 2 && raw[0] == '.' && raw[1] == '.')
            inside = false;
        if (size && !(size == 1 && raw[0] == '.')) {
            if (used)
                path[used++] = '/';
            memcpy(path + used, raw, size);
            used += size;
        }
        raw += size + (raw[size] == '/');
    }
    path[used] = '\0';
    return inside;
}

static void header_path(const struct tar_header *header, char path[PATH_MAX]) {
    size_t used = 0;
    if (memcmp(header->magic, "ustar", 6) == 0 && header->prefix[0]) {
        used = strnlen(header->prefix, sizeof header->prefix);
        memcpy(path, header->prefix, used);
        path[used++] = '/';
    }
    size_t size = strnlen(header->name, sizeof header->name);
    memcpy(path + used, header->name, size);
    path[used + size] = '\0';
}

static char entry_type(char flag, const char *raw_path) {
    size_t size = strlen(raw_path);
    if (flag >= '1' && flag <= '6')
        return flag;
    /* Before POSIX a directory was a file whose name ends with a slash; kinds that nobody knows are taken for files, as POSIX says. */
    return size && raw_path[size - 1] == '/' ? '5' : '0';
}

static bool fill_entry(struct tar_entry *entry, const struct tar_header *header, const struct overrides *overrides) {
    char raw[PATH_MAX], link[PATH_MAX];
    uint64_t mode, mtime, major_number, minor_number;
    header_path(header, raw);
    copy_text(link, header->link, sizeof header->link);
    const char *path = overrides->has_path ? overrides->path : raw, *target = overrides->has_link ? overrides->link : link;
    if (!read_number(header->mode, sizeof header->mode, &mode) || !read_number(header->uid, sizeof header->uid, &entry->uid) ||
        !read_number(header->gid, sizeof header->gid, &entry->gid) || !read_number(header->size, sizeof header->size, &entry->size) ||
        !read_number(header->mtime, sizeof header->mtime, &mtime) || !read_number(header->device_major, sizeof header->device_major, &major_number) ||
        !read_number(header->device_minor, sizeof header->device_minor, &minor_number))
        return false;
    entry->type = entry_type(header->type, path);
    entry->outside = !clean(entry->path, path);
    if (entry->type == '1')
        entry->outside |= !clean(entry->link, target);
    else
        strcpy(entry->link, target);
    entry->mode = (mode_t)mode & 07777;
    entry->mtime = overrides->has_mtime ? overrides->mtime : (int64_t)mtime;
    entry->device = makedev((unsigned)major_number, (unsigned)minor_number);
    entry->uid = overrides->has_uid ? overrides->uid : entry->uid;
    entry->gid = overrides->has_gid ? overrides->gid : entry->gid;
    entry->size = overrides->has_size ? overrides->size : entry->size;
    if (entry->type >= '2' && entry->type <= '6')
        entry->size = 0;
    return true;
}

static bool is_extension(char type) { return type == 'x' || type == 'g' || type == 'L' || type == 'K'; }

bool tar_next(const struct tar_source *source, struct tar_entry *entry, const char **problem) {
    static const struct tar_header ZEROS;
    struct tar_header header;
    struct overrides overrides = {0};
    uint64_t checksum, size;
    for (;;) {
        *problem = NULL;
        if (!source->read(source->from, &header, sizeof header) || memcmp(&header, &ZEROS, sizeof header) == 0)
            return false;
        *problem = "the bytes are no tar archive (a header's checksum is wrong)";
        if (!read_number(header.checksum, sizeof header.checksum, &checksum) || checksum != tar_checksum(&header))
            return false;
        *problem = "the archive holds a sparse file of GNU tar, which this agent cannot unpack";
        if (header.type == 'S')
            return false;
        *problem = "an archive header holds what is no number";
        if (!is_extension(header.type))
            return fill_entry(entry, &header, &overrides);
        *problem = "an extended archive header is malformed, or longer than this agent reads";
        if (!read_number(header.size, sizeof header.size, &size) || !apply_extension(source, header.type, size, &overrides))
            return false;
    }
}
