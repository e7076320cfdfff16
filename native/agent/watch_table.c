#include "watch_table.h"

#include <stdlib.h>
#include <string.h>

/* The place of the mark, or where it would have to be put in. */
static size_t locate(const struct watch_table *table, int mark) {
    size_t low = 0, high = table->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (table->entries[middle].mark < mark)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool holds(const struct watch_table *table, size_t at, int mark) { return at < table->count && table->entries[at].mark == mark; }

static void remove_at(struct watch_table *table, size_t at) {
    free(table->entries[at].path);
    memmove(&table->entries[at], &table->entries[at + 1], (--table->count - at) * sizeof *table->entries);
}

bool watch_table_set(struct watch_table *table, int mark, const char *path) {
    char *copy = strdup(path);
    size_t at = locate(table, mark);
    if (!copy)
        return false;
    if (holds(table, at, mark)) { /* the directory was moved */
        free(table->entries[at].path);
        table->entries[at].path = copy;
        return true;
    }
    if (table->count == table->capacity) {
        size_t capacity = table->capacity ? 2 * table->capacity : 16;
        struct watch_entry *entries = realloc(table->entries, capacity * sizeof *entries);
        if (!entries) {
            free(copy);
            return false;
        }
        table->entries = entries;
        table->capacity = capacity;
    }
    memmove(&table->entries[at + 1], &table->entries[at], (table->count++ - at) * sizeof *table->entries);
    table->entries[at] = (struct watch_entry){mark, copy};
    return true;
}

const char *watch_table_path(const struct watch_table *table, int mark) {
    size_t at = locate(table, mark);
    return holds(table, at, mark) ? table->entries[at].path : NULL;
}

void watch_table_remove(struct watch_table *table, int mark) {
    size_t at = locate(table, mark);
    if (holds(table, at, mark))
        remove_at(table, at);
}

int watch_table_take_below(struct watch_table *table, const char *path) {
    size_t size = strlen(path);
    for (size_t at = 0; at < table->count; at++) {
        const char *candidate = table->entries[at].path;
        if (strncmp(candidate, path, size) == 0 && (candidate[size] == '\0' || candidate[size] == '/')) {
            int mark = table->entries[at].mark;
            remove_at(table, at);
            return mark;
        }
    }
    return -1;
}

void watch_table_free(struct watch_table *table) {
    for (size_t at = 0; at < table->count; at++)
        free(table->entries[at].path);
    free(table->entries);
    *table = (struct watch_table){0};
}
