/* The operation `dial`: a connection to a server inside of the sandbox. */
#ifndef AGENTENV_DIAL_H
#define AGENTENV_DIAL_H

#include "stream.h"

void operation_dial(struct stream *stream, struct mp_value body);

#endif
