/* The moment of a snapshot: what the agent does before, in the machine that goes on, and in each that is made from it. */
#ifndef AGENTENV_FREEZE_H
#define AGENTENV_FREEZE_H

#include "stream.h"

void operation_freeze(struct stream *stream, struct mp_value body);
void operation_thaw(struct stream *stream, struct mp_value body);

/* This machine is a copy: connections of the time before have their other end elsewhere, and are dropped; what they had started runs on. */
void freeze_wake_as_copy(struct agent *agent, struct connection *spared);

/* Ends TCP connections that lead out of the machine: their other ends belong to the machine that this is a copy of. */
void tcp_end_outside_connections(void);

#endif
