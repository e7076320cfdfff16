#include "loop.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* While timers run the loop wakes at least this often (seconds). A turn that comes much later than that means that the whole machine
 * was paused (a frozen cgroup); the pause is then not counted against anybody's timeout. */
static const double HEARTBEAT = 1.0;
static const double PAUSE_NOTICED = 2.0;

double monotonic_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

bool loop_init(struct loop *loop) {
    *loop = (struct loop){.epoll = epoll_create1(EPOLL_CLOEXEC)};
    loop->now = monotonic_seconds();
    return loop->epoll >= 0;
}

/* Events of this turn that were fetched but not yet delivered must not reach a source that is gone. */
static void forget_fetched(struct loop *loop, const struct source *source) {
    for (int i = loop->batch_at; i < loop->batch_count; i++)
        if (loop->batch[i].data.ptr == source)
            loop->batch[i].data.ptr = NULL;
}

bool loop_watch(struct loop *loop, struct source *source, uint32_t events) {
    if (source->fd < 0 || source->events == events)
        return true;
    int operation = source->events == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    struct epoll_event event = {.events = events, .data.ptr = source};
    if (epoll_ctl(loop->epoll, operation, source->fd, &event) != 0)
        return false;
    source->events = events;
    if (events == 0)
        forget_fetched(loop, source);
    return true;
}

bool loop_move(struct loop *loop, struct source *from, struct source *to, uint32_t events) {
    to->fd = from->fd;
    to->events = from->events;
    from->fd = -1;
    from->events = 0;
    forget_fetched(loop, from);
    struct epoll_event event = {.events = events, .data.ptr = to};
    if (epoll_ctl(loop->epoll, EPOLL_CTL_MOD, to->fd, &event) != 0)
        return false;
    to->events = events;
    return true;
}

void loop_close(struct loop *loop, struct source *source) {
    if (source->fd < 0)
        return;
    loop_watch(loop, source, 0);
    close(source->fd);
    source->fd = -1;
}

static void place(struct loop *loop, struct timer *timer, size_t slot) {
    loop->heap[slot] = timer;
    timer->slot = slot;
}

/* Moves the timer at `slot` up or down until the heap is in order again. */
static void sift(struct loop *loop, size_t slot) {
    struct timer *timer = loop->heap[slot];
    for (; slot > 1 && loop->heap[slot / 2]->deadline > timer->deadline; slot /= 2)
        place(loop, loop->heap[slot / 2], slot);
    for (size_t child; (child = 2 * slot) <= loop->timers; slot = child) {
        if (child < loop->timers && loop->heap[child + 1]->deadline < loop->heap[child]->deadline)
            child++;
        if (loop->heap[child]->deadline >= timer->deadline)
            break;
        place(loop, loop->heap[child], slot);
    }
    place(loop, timer, slot);
}

static bool heap_has_room(struct loop *loop) {
    if (loop->timers + 1 < loop->heap_capacity)
        return true;
    size_t capacity = loop->heap_capacity ? 2 * loop->heap_capacity : 32;
    struct timer **heap = realloc(loop->heap, capacity * sizeof *heap);
    if (!heap)
        return false;
    loop->heap = heap;
    loop->heap_capacity = capacity;
    return true;
}

void loop_arm(struct loop *loop, struct timer *timer, double seconds) {
    timer->deadline = loop->now + seconds;
    if (timer->slot == 0) {
        if (!heap_has_room(loop))
            return;
        place(loop, timer, ++loop->timers);
    }
    sift(loop, timer->slot);
}

void loop_disarm(struct loop *loop, struct timer *timer) {
    size_t slot = timer->slot;
    if (slot == 0)
        return;
    timer->slot = 0;
    struct timer *last = loop->heap[loop->timers--];
    if (last == timer)
        return;
    place(loop, last, slot);
    sift(loop, slot);
}

static int wait_milliseconds(const struct loop *loop, bool busy) {
    if (busy)
        return 0;
    if (loop->timers == 0)
        return -1;
    double seconds = loop->heap[1]->deadline - monotonic_seconds();
    if (seconds > HEARTBEAT)
        seconds = HEARTBEAT;
    return seconds <= 0 ? 0 : (int)(seconds * 1000) + 1;
}

static void skip_pause(struct loop *loop, double before) {
    double paused = loop->now - before - HEARTBEAT;
    if (paused < PAUSE_NOTICED - HEARTBEAT)
        return;
    for (size_t i = 1; i <= loop->timers; i++)
        loop->heap[i]->deadline += paused;
}

void loop_turn(struct loop *loop, bool busy) {
    bool timed = loop->timers > 0;
    double before = loop->now; /* not taken anew: the pause may come anywhere between two waits */
    int count = epoll_wait(loop->epoll, loop->batch, LOOP_BATCH, wait_milliseconds(loop, busy));
    loop->now = monotonic_seconds();
    if (timed)
        skip_pause(loop, before);
    loop->batch_count = count < 0 ? 0 : count;
    for (loop->batch_at = 0; loop->batch_at < loop->batch_count;) {
        struct epoll_event *event = &loop->batch[loop->batch_at++];
        struct source *source = event->data.ptr;
        if (source)
            source->ready(source, event->events);
    }
    while (loop->timers && loop->heap[1]->deadline <= loop->now) {
        struct timer *timer = loop->heap[1];
        loop_disarm(loop, timer);
        timer->fire(timer);
    }
}
