/* A NULL-terminated list of strings that it owns, as execve wants it. */
#ifndef AGENTENV_TEXT_LIST_H
#define AGENTENV_TEXT_LIST_H

#include "msgpack.h"

struct strings {
    char **items; /* NULL-terminated once anything was added */
    size_t count, capacity;
};

/* Copies `size` bytes in as one string; false when memory ran out. */
bool strings_add(struct strings *strings, const char *text, size_t size);

/* Sets NAME=VALUE, replacing an earlier value of that name. */
bool strings_set(struct strings *strings, const char *name, size_t name_size, const char *value, size_t value_size);

/* The value of NAME in a list of NAME=VALUE, or NULL. */
const char *strings_value(const struct strings *strings, const char *name);

bool strings_copy(struct strings *to, const struct strings *from);
void strings_free(struct strings *strings);

#endif
