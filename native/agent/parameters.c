#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "operations.h"

static bool refuse(struct stream *stream, const char *key, const char *expected) {
    stream_fail(stream, EPROTO, "parameter '%s' must be %s", key, expected);
    return false;
}

bool take_text(struct stream *stream, struct mp_value body, const char *key, bool needed, char **text) {
    struct mp_value value;
    struct mp_bytes bytes;
    *text = NULL;
    if (!mp_get(body, key, &value))
        return needed ? refuse(stream, key, "given, as a string") : true;
    if (!mp_bytes(value, &bytes) || memchr(bytes.at, '\0', bytes.size))
        return refuse(stream, key, "a string without NUL bytes");
    *text = strndup((const char *)bytes.at, bytes.size);
    if (*text)
        return true;
    stream_fail(stream, ENOMEM, "%s", key);
    return false;
}

bool take_path(struct stream *stream, struct mp_value body, const char *key, char **path) {
    if (!take_text(stream, body, key, true, path))
        return false;
    int problem = **path == '\0' ? ENOENT : strlen(*path) >= PATH_MAX ? ENAMETOOLONG : 0;
    if (problem == 0)
        return true;
    free(*path);
    *path = NULL;
    stream_fail(stream, problem, "%s", key);
    return false;
}

bool take_flag(struct stream *stream, struct mp_value body, const char *key, bool *flag) {
    struct mp_value value;
    return !mp_get(body, key, &value) || mp_bool(value, flag) || refuse(stream, key, "true or false");
}

bool take_int(struct stream *stream, struct mp_value body, const char *key, bool needed, int64_t least, int64_t most, int64_t *number) {
    struct mp_value value;
    char expected[96];
    if (!mp_get(body, key, &value))
        return needed ? refuse(stream, key, "given, as an integer") : true;
    if (mp_int(value, number) && *number >= least && *number <= most)
        return true;
    snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)least, (long long)most);
    return refuse(stream, key, expected);
}

bool take_seconds(struct stream *stream, struct mp_value body, const char *key, double *seconds) {
    struct mp_value value;
    if (!mp_get(body, key, &value))
        return true;
    return (mp_number(value, seconds) && isfinite(*seconds) && *seconds >= 0) || refuse(stream, key, "a number of seconds, 0 or more");
}

bool take_user(struct stream *stream, struct mp_value body, const char *key, char **user) {
    struct mp_value value;
    uint64_t uid;
    char digits[24];
    *user = NULL;
    if (!mp_get(body, key, &value))
        return true;
    if (!mp_uint(value, &uid))
        return take_text(stream, body, key, false, user);
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)uid);
    *user = strdup(digits);
    return *user != NULL || refuse(stream, key, "a name or a uid");
}
