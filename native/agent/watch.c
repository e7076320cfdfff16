#include "watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"
#include "operations.h"
#include "watch_table.h"

enum {
    MASK = IN_CREATE | IN_DELETE | IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF,
    SCANS_A_TURN = 32, /* directories that are entered before others get their turn */
};

/* A directory that is still to be entered. */
struct scan {
    struct scan *next;
    bool tell; /* its content is news: it was there before the watch could be */
    char path[];
};

struct watcher {
    struct source source;
    struct stream *stream;
    struct agent *agent;
    struct watch_table table;
    struct scan *scans, **scans_end;
    char *root;
    char *only;       /* a file is watched through its directory (so that it may be replaced): its name; NULL: all names */
    bool recursive, ready;
};

static void free_watcher(struct watcher *watcher) {
    loop_close(&watcher->agent->loop, &watcher->source);
    while (watcher->scans) {
        struct scan *scan = watcher->scans;
        watcher->scans = scan->next;
        free(scan);
    }
    watch_table_free(&watcher->table);
    free(watcher->root);
    free(watcher->only);
    free(watcher);
}

static void tell(struct watcher *watcher, const char *type, const char *path) {
    size_t mark;
    struct buffer *out = stream_event(watcher->stream, "change", 2, &mark);
    mp_write_str(out, "type");
    mp_write_str(out, type);
    mp_write_str(out, "path");
    mp_write_text(out, path, strlen(path));
    stream_commit(watcher->stream, mark);
}

static void tell_plain(struct watcher *watcher, const char *name) {
    size_t mark;
    stream_event(watcher->stream, name, 0, &mark);
    stream_commit(watcher->stream, mark);
}

static bool queue_scan(struct watcher *watcher, const char *path, bool news) {
    size_t size = strlen(path) + 1;
    struct scan *scan = malloc(sizeof *scan + size);
    if (!scan)
        return false;
    scan->next = NULL;
    scan->tell = news;
    memcpy(scan->path, path, size);
    *watcher->scans_end = scan;
    watcher->scans_end = &scan->next;
    return true;
}

static bool join(char joined[PATH_MAX], const char *directory, const char *name) {
    const char *slash = directory[0] && directory[strlen(directory) - 1] == '/' ? "" : "/";
    return snprintf(joined, PATH_MAX, "%s%s%s", directory, slash, name) < PATH_MAX;
}

static bool is_directory(int directory, const struct dirent *entry) {
    struct stat info;
    if (entry->d_type != DT_UNKNOWN)
        return entry->d_type == DT_DIR;
    return fstatat(directory, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode);
}

static void read_content(struct watcher *watcher, const char *path, bool news) {
    char child[PATH_MAX];
    DIR *directory = opendir(path);
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 || !join(child, path, entry->d_name))
            continue;
        if (news)
            tell(watcher, "create", child);
        if (is_directory(dirfd(directory), entry))
            queue_scan(watcher, child, news);
    }
    if (directory)
        closedir(directory);
}

/* Watches one directory and, in a tree, looks into it. A directory below the root that is gone again or closed to us is passed over. */
static bool enter(struct watcher *watcher, const char *path, bool news) {
    bool is_root = strcmp(path, watcher->root) == 0;
    int mark = inotify_add_watch(watcher->source.fd, path, MASK | IN_ONLYDIR | (is_root ? 0 : IN_DONT_FOLLOW));
    if (mark < 0)
        return !is_root && errno != ENOSPC && errno != ENOMEM;
    if (!watch_table_set(&watcher->table, mark, path)) {
        errno = ENOMEM;
        return false;
    }
    if (watcher->recursive)
        read_content(watcher, path, news);
    return true;
}

static void fail(struct watcher *watcher, int problem) {
    struct stream *stream = watcher->stream;
    char root[401];
    snprintf(root, sizeof root, "%.400s", watcher->root);
    free_watcher(watcher);
    if (problem == ENOSPC)
        stream_fail(stream, problem, "%s: fs.inotify.max_user_watches of the host is too low for this tree", root);
    else
        stream_fail(stream, problem, "%s", root);
}

/* Enters some of the directories that are due; whoever watches a large tree does not hold up the others. */
static void scan(struct watcher *watcher) {
    for (int i = 0; i < SCANS_A_TURN && watcher->scans; i++) {
        struct scan *scan = watcher->scans;
        bool good = enter(watcher, scan->path, scan->tell);
        int problem = errno;
        watcher->scans = scan->next;
        if (!watcher->scans)
            watcher->scans_end = &watcher->scans;
        free(scan);
        if (!good) {
            fail(watcher, problem);
            return;
        }
    }
    if (!watcher->scans && !watcher->ready) {
        watcher->ready = true;
        tell_plain(watcher, "ready");
    }
    if (watcher->scans)
        stream_wait(watcher->stream);
    else
        loop_watch(&watcher->agent->loop, &watcher->source, EPOLLIN);
}

static const char *change_name(uint32_t mask) {
    if (mask & (IN_CREATE | IN_MOVED_TO))
        return "create";
    if (mask & (IN_DELETE | IN_DELETE_SELF))
        return "remove";
    if (mask & (IN_MOVED_FROM | IN_MOVE_SELF))
        return "rename";
    return mask & IN_MODIFY ? "write" : "chmod";
}

static void forget_below(struct watcher *watcher, const char *path) {
    int mark;
    while ((mark = watch_table_take_below(&watcher->table, path)) >= 0)
        inotify_rm_watch(watcher->source.fd, mark);
}

/* False when this was the end of the watcher: what it watched is gone. */
static bool handle_own_change(struct watcher *watcher, const struct inotify_event *event, const char *path) {
    bool is_root = strcmp(path, watcher->root) == 0;
    if (event->mask & IN_IGNORED) {
        watch_table_remove(&watcher->table, event->wd);
        if (!is_root)
            return true;
        struct stream *stream = watcher->stream;
        free_watcher(watcher);
        stream_done(stream);
        return false;
    }
    /* Of every other directory the one above tells the same. */
    if (is_root && !watcher->only)
        tell(watcher, change_name(event->mask), path);
    return true;
}

static bool handle(struct watcher *watcher, const struct inotify_event *event) {
    char path[PATH_MAX];
    if (event->mask & IN_Q_OVERFLOW) {
        tell_plain(watcher, "overflow");
        return true;
    }
    const char *directory = watch_table_path(&watcher->table, event->wd);
    if (!directory)
        return true;
    if (event->len == 0) {
        char own[PATH_MAX];
        snprintf(own, sizeof own, "%s", directory);
        return handle_own_change(watcher, event, own);
    }
    if ((watcher->only && strcmp(event->name, watcher->only) != 0) || !join(path, directory, event->name))
        return true;
    tell(watcher, change_name(event->mask), path);
    if (watcher->recursive && event->mask & IN_ISDIR) {
        if (event->mask & IN_MOVED_FROM)
            forget_below(watcher, path);
        if (event->mask & (IN_CREATE | IN_MOVED_TO))
            queue_scan(watcher, path, (event->mask & IN_CREATE) != 0);
    }
    return true;
}

static void changed(struct source *source, uint32_t events) {
    (void)events;
    struct watcher *watcher = container_of(source, struct watcher, source);
    if (watcher->stream->connection->out.length >= SEND_HIGH) {
        /* The kernel keeps the changes, and says so when it could not keep them all. */
        loop_watch(&watcher->agent->loop, source, 0);
        stream_wait(watcher->stream);
        return;
    }
    _Alignas(struct inotify_event) char batch[16384];
    ssize_t size = read(source->fd, batch, sizeof batch);
    for (char *at = batch; at < batch + size;) {
        const struct inotify_event *event = (const struct inotify_event *)at;
        if (!handle(watcher, event))
            return;
        at += sizeof *event + event->len;
    }
    if (watcher->scans)
        scan(watcher);
}

static void on_abandon(struct stream *stream) { free_watcher(stream->state); }

static void on_cancel(struct stream *stream) {
    on_abandon(stream);
    stream_done(stream);
}

static void on_pump(struct stream *stream) { scan(stream->state); }

static const struct stream_handler WATCH_HANDLER = {.pump = on_pump, .cancel = on_cancel, .abandon = on_abandon};

/* A file is watched through its directory. */
static bool aim_at_parent(struct watcher *watcher) {
    char *slash = strrchr(watcher->root, '/');
    watcher->recursive = false;
    watcher->only = strdup(slash ? slash + 1 : watcher->root);
    if (!slash) {
        free(watcher->root);
        watcher->root = strdup("/"); /* where relative paths start */
    } else {
        slash[slash == watcher->root] = '\0';
    }
    return watcher->only && watcher->root;
}

void operation_watch(struct stream *stream, struct mp_value body) {
    char *path;
    bool recursive = false;
    struct stat info;
    if (!take_flag(stream, body, "recursive", &recursive) || !take_path(stream, body, "path", &path))
        return;
    struct watcher *watcher = calloc(1, sizeof *watcher);
    if (!watcher || stat(path, &info) != 0) {
        stream_fail(stream, errno, "%.400s", path);
        free(watcher);
        free(path);
        return;
    }
    struct agent *agent = stream_agent(stream);
    *watcher = (struct watcher){.stream = stream, .agent = agent, .root = path, .recursive = recursive};
    watcher->source = (struct source){.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK), .ready = changed};
    watcher->scans_end = &watcher->scans;
    stream->handler = &WATCH_HANDLER;
    stream->state = watcher;
    if (watcher->source.fd < 0 || (!S_ISDIR(info.st_mode) && !aim_at_parent(watcher)) || !queue_scan(watcher, watcher->root, false))
        fail(watcher, errno);
    else
        scan(watcher);
}
