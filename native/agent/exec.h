/* The operations on processes: exec, attach, processes, signal. */
#ifndef AGENTENV_EXEC_H
#define AGENTENV_EXEC_H

#include <sys/types.h>

#include "stream.h"

void operation_exec(struct stream *stream, struct mp_value body);
void operation_attach(struct stream *stream, struct mp_value body);
void operation_processes(struct stream *stream, struct mp_value body);
void operation_signal(struct stream *stream, struct mp_value body);

/* Sends the event `started`: the stream now speaks for the process `pid`. */
void tell_started(struct stream *stream, pid_t pid);

/* Reads the parameter `env` over what is in `env` already. */
struct strings;
bool take_environment(struct stream *stream, struct mp_value body, struct strings *env);

#endif
