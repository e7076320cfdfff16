/* The way out of a machine whose kernel has no network of its own: Ethernet frames are carried between a tap in here and the descriptor that
 * the host has given for it. */
#ifndef AGENTENV_UPLINK_H
#define AGENTENV_UPLINK_H

#include "stream.h"

void operation_network(struct stream *stream, struct mp_value body);

#endif
