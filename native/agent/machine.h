/* The operations on the machine as a whole. */
#ifndef AGENTENV_MACHINE_H
#define AGENTENV_MACHINE_H

#include "stream.h"

void operation_stats(struct stream *stream, struct mp_value body);
void operation_stop_all(struct stream *stream, struct mp_value body);
void operation_continue_all(struct stream *stream, struct mp_value body);
void operation_configure(struct stream *stream, struct mp_value body);
void operation_restored(struct stream *stream, struct mp_value body);
void operation_ping(struct stream *stream, struct mp_value body);
void operation_shutdown(struct stream *stream, struct mp_value body);

/* SIGTERM to everybody; when all are gone, or after `grace` seconds and SIGKILL, the loop stops. */
void machine_shut_down(struct agent *agent, double grace);

/* Ends a shutdown that has nobody left to wait for: every child collected, every result told. */
void machine_check_empty(struct agent *agent);

#endif
