/*
 * Who reads the memory that its sandbox is shown.
 *
 * A meminfo is a file that the sandbox's agent writes, and rewrites when it was read. inotify tells of that, but each user may have only some 128
 * inotify instances (fs.inotify.max_user_instances), programs of his own included: so the daemon has one for all its sandboxes, on which each adds the watch
 * of its own file before it becomes the agent, and passes the news on as a signal. The kernel drops a watch with the file.
 */
#include "daemon.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "kernel.h"

/* Somebody who reads in a loop gets figures of this age, and the daemon its rest. */
enum { REST_NS = 50000000, BATCH = 16384 };

static void listen_for(struct daemon *daemon, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = &daemon->looks_source};
    if (epoll_ctl(daemon->events, EPOLL_CTL_MOD, daemon->host.looks, &event) < 0) die("watching meminfo");
}

void open_looks(struct daemon *daemon) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &daemon->looks_source};
    daemon->looks_source = SOURCE_LOOKS;
    daemon->rested_source = SOURCE_RESTED;
    daemon->rest = daemon->host.looks < 0 ? -1 : timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (daemon->rest < 0) {
        dprintf(STDERR_FILENO, "agentenv-launch: /proc/meminfo of sandboxes is rewritten only when a command starts: %s\n", strerror(errno));
        return;
    }
    if (epoll_ctl(daemon->events, EPOLL_CTL_ADD, daemon->host.looks, &event) < 0) die("watching meminfo");
    event.data.ptr = &daemon->rested_source;
    if (epoll_ctl(daemon->events, EPOLL_CTL_ADD, daemon->rest, &event) < 0) die("watching meminfo");
}

/* More reads than the kernel keeps are told as one that may be anybody's. */
static void mark(struct daemon *daemon, const struct inotify_event *event) {
    bool anybody = event->mask & IN_Q_OVERFLOW;
    if (!anybody && !(event->mask & IN_ACCESS)) return; /* the end of a watch */
    for (struct sandbox *sandbox = daemon->sandboxes; sandbox != NULL; sandbox = sandbox->next)
        if (sandbox->looks > 0 && (anybody || sandbox->looks == event->wd)) sandbox->looked_at = true;
}

void take_looks(struct daemon *daemon) {
    static char batch[BATCH] __attribute__((aligned(__alignof__(struct inotify_event))));
    for (ssize_t size; (size = read(daemon->host.looks, batch, sizeof batch)) > 0;) {
        const struct inotify_event *event;
        for (ssize_t at = 0; at < size; at += (ssize_t)(sizeof *event + event->len)) {
            event = (const struct inotify_event *)(void *)(batch + at);
            mark(daemon, event);
        }
    }
    for (struct sandbox *sandbox = daemon->sandboxes; sandbox != NULL; sandbox = sandbox->next) {
        if (sandbox->looked_at) pidfd_send_signal(sandbox->pidfd, SIGUSR1);
        sandbox->looked_at = false;
    }
    const struct itimerspec rest = {.it_value = {.tv_nsec = REST_NS}};
    listen_for(daemon, 0);
    if (timerfd_settime(daemon->rest, 0, &rest, NULL) < 0) die("resting");
}

void take_looks_again(struct daemon *daemon) {
    uint64_t times;
    if (read(daemon->rest, &times, sizeof times) > 0) listen_for(daemon, EPOLLIN);
}
