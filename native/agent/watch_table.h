/* Which directory each inotify watch descriptor stands for. */
#ifndef AGENTENV_WATCH_TABLE_H
#define AGENTENV_WATCH_TABLE_H

#include <stdbool.h>
#include <stddef.h>

struct watch_table {
    struct watch_entry {
        int mark;
        char *path;
    } *entries; /* sorted by mark; the kernel hands marks out in rising order */
    size_t count, capacity;
};

bool watch_table_set(struct watch_table *table, int mark, const char *path); /* false: no memory */
const char *watch_table_path(const struct watch_table *table, int mark);     /* NULL: none */
void watch_table_remove(struct watch_table *table, int mark);

/* Removes one entry that is `path` or lies below it; its mark, or -1 when there is none. */
int watch_table_take_below(struct watch_table *table, const char *path);
void watch_table_free(struct watch_table *table);

#endif
