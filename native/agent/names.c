#include "names.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "buffer.h"

enum { LARGEST = 65536 };

static const char *const FILES[] = {"/etc/hostname", "/etc/hosts"};

/* With the words replaced; false when there was none. */
static bool replace_words(const char *text, size_t size, const char *from, const char *to, struct buffer *result) {
    bool found = false;
    for (size_t at = 0; at < size;) {
        size_t end = at;
        while (end < size && !isspace((unsigned char)text[end]))
            end++;
        bool is_name = end - at == strlen(from) && memcmp(text + at, from, end - at) == 0;
        found |= is_name;
        if (is_name)
            buffer_append(result, to, strlen(to));
        else
            buffer_append(result, text + at, end - at);
        if (end < size)
            buffer_append(result, text + end++, 1);
        at = end;
    }
    return found;
}

static void replace_in(const char *path, const char *from, const char *to) {
    static char text[LARGEST];
    struct buffer result = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text);
    close(fd);
    if (size > 0 && size < LARGEST && replace_words(text, (size_t)size, from, to, &result) && !result.failed) {
        fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 && write(fd, buffer_head(&result), result.length) < 0)
            errno = 0; /* a full disk: then this machine cannot look itself up by its name */
        close(fd);
    }
    buffer_release(&result);
}

void names_read(char *name, size_t size) {
    int fd = open(FILES[0], O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t length = fd < 0 ? -1 : read(fd, name, size - 1);
    close(fd);
    name[length < 0 ? 0 : length] = '\0';
    name[strcspn(name, " \t\n")] = '\0';
}

void names_replace(const char *from, const char *to) {
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES && *from && strcmp(from, to) != 0; i++)
        replace_in(FILES[i], from, to);
}
