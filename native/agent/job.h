/* Work that may take long (walking a tree, packing an archive) is done by a forked copy of the agent, so that the loop never waits for a disk.
 *
 * The copy writes whole frames of the protocol to a pipe, with the stream's own number: DATA, EVENT, at last RESULT or ERROR. The agent passes them on as
 * credit and room allow. What the host sends as DATA comes to the copy's standard input.
 */
#ifndef AGENTENV_JOB_H
#define AGENTENV_JOB_H

#include "stream.h"

/* The copy's side. */
struct job_output {
    uint32_t stream;
    int in, out; /* where uploaded bytes come from and frames go to */
    struct buffer buffer;
};

/* Frames are gathered; this writes them out when enough have come together, or `now`. Exits when the agent has gone. */
void job_flush(struct job_output *output, bool now);
void job_data(struct job_output *output, const void *bytes, size_t size);
_Noreturn void job_finish(struct job_output *output, size_t mark); /* commits a RESULT */
/* ERROR: with the errno's own words behind the message, or with a message that says all. */
_Noreturn void job_fail(struct job_output *output, int number, const char *format, ...) __attribute__((format(printf, 3, 4)));
_Noreturn void job_error(struct job_output *output, const char *code, const char *format, ...) __attribute__((format(printf, 3, 4)));
struct buffer *job_begin(struct job_output *output, enum frame_kind kind, size_t *mark);
void job_commit(struct job_output *output, size_t mark);

/* The agent's side: forks; `work` never returns. `argument` need not outlive the call. With `takes_data` the stream's DATA is fed to the copy. */
void job_start(struct stream *stream, bool takes_data, void (*work)(struct job_output *output, void *argument), void *argument);

#endif
