#include "text_list.h"

#include <stdlib.h>
#include <string.h>

static bool add_owned(struct strings *strings, char *text) {
    if (!text)
        return false;
    if (strings->count + 1 >= strings->capacity) {
        size_t capacity = strings->capacity ? 2 * strings->capacity : 16;
        char **items = realloc(strings->items, capacity * sizeof *items);
        if (!items) {
            free(text);
            return false;
        }
        strings->items = items;
        strings->capacity = capacity;
    }
    strings->items[strings->count++] = text;
    strings->items[strings->count] = NULL;
    return true;
}

bool strings_add(struct strings *strings, const char *text, size_t size) { return add_owned(strings, strndup(text, size)); }

static char **find(const struct strings *strings, const char *name, size_t size) {
    for (size_t i = 0; i < strings->count; i++)
        if (strncmp(strings->items[i], name, size) == 0 && strings->items[i][size] == '=')
            return &strings->items[i];
    return NULL;
}

bool strings_set(struct strings *strings, const char *name, size_t name_size, const char *value, size_t value_size) {
    char *pair = malloc(name_size + value_size + 2);
    if (!pair)
        return false;
    memcpy(pair, name, name_size);
    pair[name_size] = '=';
    memcpy(pair + name_size + 1, value, value_size);
    pair[name_size + 1 + value_size] = '\0';
    char **old = find(strings, name, name_size);
    if (!old)
        return add_owned(strings, pair);
    free(*old);
    *old = pair;
    return true;
}

const char *strings_value(const struct strings *strings, const char *name) {
    size_t size = strlen(name);
    char **pair = find(strings, name, size);
    return pair ? *pair + size + 1 : NULL;
}

bool strings_copy(struct strings *to, const struct strings *from) {
    for (size_t i = 0; i < from->count; i++)
        if (!strings_add(to, from->items[i], strlen(from->items[i])))
            return false;
    return true;
}

void strings_free(struct strings *strings) {
    for (size_t i = 0; i < strings->count; i++)
        free(strings->items[i]);
    free(strings->items);
    *strings = (struct strings){0};
}
