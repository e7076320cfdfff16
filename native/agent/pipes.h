/* The two ends between a stream and a descriptor: an outlet turns what a descriptor yields into DATA, an inlet writes DATA to a descriptor. */
#ifndef AGENTENV_PIPES_H
#define AGENTENV_PIPES_H

#include "stream.h"

struct history;

struct outlet {
    struct source source; /* fd -1: at its end */
    struct agent *agent;
    struct stream *stream; /* NULL: what comes is only kept in the history */
    enum frame_kind kind;
    struct history *history; /* NULL: nothing is kept */
    bool impatient;          /* cancelled: what finds no credit is dropped */
    bool leave_when_empty;   /* the process has ended: an empty pipe is the end, though somebody may still hold it */
    void (*moved)(struct outlet *outlet); /* some bytes came; may be NULL */
    void (*ended)(struct outlet *outlet); /* the last call; the outlet may be freed in it */
};

struct inlet {
    struct source source; /* fd -1: closed, everything more is dropped */
    struct agent *agent;
    struct stream *stream; /* NULL: nobody to give credit back to */
    struct buffer backlog;
    size_t owed;  /* bytes of the backlog that the stream will get back as credit */
    bool expected; /* the descriptor is still to come: until then everything is kept */
    bool ending;   /* close when the backlog is written */
    void (*closing)(struct inlet *inlet); /* just before the descriptor is closed; may be NULL */
    void (*closed)(struct inlet *inlet);  /* the last call, the inlet may be freed in it; may be NULL */
};

/* Starts to watch a non-blocking descriptor, which is taken over. */
void outlet_open(struct outlet *outlet, struct agent *agent, int fd);
/* There is room again, or the stream was exchanged. */
void outlet_resume(struct outlet *outlet);
/* The stream was cancelled: nothing waits for credit any more. May call `ended`. */
void outlet_stop_waiting(struct outlet *outlet);
/* The process has ended: read what is there and take emptiness for the end. May call `ended`. */
void outlet_leave_when_empty(struct outlet *outlet);
void outlet_close(struct outlet *outlet); /* without `ended` */

void inlet_open(struct inlet *inlet, struct agent *agent, int fd);
void inlet_data(struct inlet *inlet, const void *bytes, size_t size);
void inlet_type(struct inlet *inlet, const void *bytes, size_t size); /* bytes that did not come from the stream */
void inlet_end(struct inlet *inlet);
void inlet_close(struct inlet *inlet);

/* Makes a pipe whose end `ours` (0: we read, 1: we write) does not block; false with errno. */
bool make_pipe(int ends[2], int ours);

bool set_nonblocking(int fd, bool nonblocking);

#endif
