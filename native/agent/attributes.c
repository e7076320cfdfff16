#include <errno.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "files.h"
#include "operations.h"

#define NAMESPACE "user."

/* As much of a file's attributes as one entry tells: a guest may hang far more on its files than a frame holds. */
enum { NAMES_MOST = XATTR_LIST_MAX, VALUES_MOST = 8192 };

static bool is_plain(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (text[i] < 0x20 || text[i] > 0x7e)
            return false;
    return true;
}

bool take_attributes(struct stream *stream, struct mp_value body, const char *key, bool needed, char **prefix) {
    if (!take_text(stream, body, key, needed, prefix))
        return false;
    if (!*prefix || (strncmp(*prefix, NAMESPACE, strlen(NAMESPACE)) == 0 && strlen(*prefix) < XATTR_NAME_MAX))
        return true;
    free(*prefix);
    stream_fail(stream, EINVAL, "parameter '%s' must begin with '" NAMESPACE "'", key);
    return false;
}

void attributes_write(struct buffer *out, const char *path, bool follow, const char *prefix) {
    char names[NAMES_MOST], values[VALUES_MOST];
    struct buffer pairs = {0};
    uint32_t count = 0;
    size_t used = 0;
    ssize_t size = (follow ? listxattr : llistxattr)(path, names, sizeof names);
    for (const char *name = names; name < names + size; name += strlen(name) + 1) {
        const char *rest = name + strlen(prefix);
        if (strncmp(name, prefix, strlen(prefix)) != 0 || !is_plain(rest, strlen(rest)))
            continue;
        ssize_t length = (follow ? getxattr : lgetxattr)(path, name, values, sizeof values - used);
        if (length < 0 || !is_plain(values, (size_t)length))
            continue;
        used += (size_t)length;
        mp_write_text(&pairs, rest, strlen(rest));
        mp_write_text(&pairs, values, (size_t)length);
        count++;
    }
    mp_write_map(out, count);
    buffer_append(out, buffer_head(&pairs), pairs.length);
    buffer_release(&pairs);
}

/* The name of an attribute that begins with the prefix; an empty string when it is too long. */
static const char *full_name(char name[XATTR_NAME_MAX + 1], const char *prefix, struct mp_bytes rest) {
    size_t size = strlen(prefix);
    name[0] = '\0';
    if (size + rest.size <= XATTR_NAME_MAX) {
        memcpy(name, prefix, size);
        memcpy(name + size, rest.at, rest.size);
        name[size + rest.size] = '\0';
    }
    return name;
}

/* Whether `values` is a map of plain strings whose names are not too long. */
static bool fits(struct mp_value values, const char *prefix) {
    struct mp_iterator items;
    struct mp_value item;
    struct mp_bytes name, value;
    char full[XATTR_NAME_MAX + 1];
    if (!mp_iterate_map(values, &items))
        return false;
    while (mp_next(&items, &item))
        if (!mp_bytes(item, &name) || !name.size || !is_plain((const char *)name.at, name.size) || !*full_name(full, prefix, name) ||
            !mp_next(&items, &item) || !mp_bytes(item, &value) || !is_plain((const char *)value.at, value.size))
            return false;
    return true;
}

/* Removes what begins with the prefix, then sets `values`; 0 or an errno. */
static int replace(const char *path, const char *prefix, struct mp_value values) {
    char names[NAMES_MOST], full[XATTR_NAME_MAX + 1];
    struct mp_iterator items;
    struct mp_value item;
    struct mp_bytes name, value;
    ssize_t size = listxattr(path, names, sizeof names);
    if (size < 0 && errno != ENOTSUP)
        return errno;
    for (const char *old = names; old < names + size; old += strlen(old) + 1)
        if (strncmp(old, prefix, strlen(prefix)) == 0 && removexattr(path, old) != 0 && errno != ENODATA)
            return errno;
    mp_iterate_map(values, &items);
    while (mp_next(&items, &item) && mp_bytes(item, &name) && mp_next(&items, &item) && mp_bytes(item, &value))
        if (setxattr(path, full_name(full, prefix, name), value.at, value.size, 0) != 0)
            return errno;
    return 0;
}

void operation_attributes(struct stream *stream, struct mp_value body) {
    char *path, *prefix;
    struct mp_value values;
    if (!take_attributes(stream, body, "prefix", true, &prefix))
        return;
    if (!take_path(stream, body, "path", &path)) {
        free(prefix);
        return;
    }
    int problem = 0;
    if (!mp_get(body, "values", &values) || !fits(values, prefix))
        stream_fail(stream, EPROTO, "parameter 'values' must be a map of strings of printable ASCII, with names of at most %d bytes", XATTR_NAME_MAX);
    else if ((problem = replace(path, prefix, values)) != 0)
        stream_fail(stream, problem, "%.400s", path);
    else
        stream_done(stream);
    free(path);
    free(prefix);
}
