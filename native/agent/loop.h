/* The agent's event loop: epoll, a heap of timers, one thread. */
#ifndef AGENTENV_LOOP_H
#define AGENTENV_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

#define container_of(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))

/* A descriptor that the loop watches. It may be closed or freed inside of any callback once it has been unwatched. */
struct source {
    int fd;          /* -1: none */
    uint32_t events; /* what is watched now; 0: the loop does not know the descriptor */
    void (*ready)(struct source *source, uint32_t events);
};

struct timer {
    double deadline;
    size_t slot; /* its place in the heap, from 1; 0: not armed */
    void (*fire)(struct timer *timer);
};

enum { LOOP_BATCH = 64 };

struct loop {
    int epoll;
    struct epoll_event batch[LOOP_BATCH];
    int batch_at, batch_count;
    struct timer **heap;
    size_t timers, heap_capacity;
    double now; /* monotonic seconds, taken once per turn */
    bool stopped;
};

bool loop_init(struct loop *loop);

/* Watches the source for exactly these EPOLL events; 0 unwatches. False with errno when the kernel refuses. */
bool loop_watch(struct loop *loop, struct source *source, uint32_t events);

/* Hands the descriptor of `from`, which is watched, over to `to`, which is watched for `events`. False with errno when the kernel refuses. */
bool loop_move(struct loop *loop, struct source *from, struct source *to, uint32_t events);

/* Unwatches and closes the descriptor. */
void loop_close(struct loop *loop, struct source *source);

/* Arms (or moves) the timer; an armed timer fires once. */
void loop_arm(struct loop *loop, struct timer *timer, double seconds);
void loop_disarm(struct loop *loop, struct timer *timer);

/* One turn: waits unless `busy`, then runs what is ready. */
void loop_turn(struct loop *loop, bool busy);

double monotonic_seconds(void);

#endif
