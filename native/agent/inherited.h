/* Connections to the outside that a machine has inherited from the one it is a copy of. They belong to that one, which goes on using them. */
#ifndef AGENTENV_INHERITED_H
#define AGENTENV_INHERITED_H

#include "interface.h"

/* Breaks them off, for as long as the route to everywhere leads over the loopback: a segment that cannot be right is handed to each through
 * `tap`; its answer, which tells what would be right, comes back to this machine's own kernel; that knows of no such connection and answers
 * with a reset that fits exactly. Returns when they are gone, or will not go. */
void inherited_connections_end(const struct interface *interface, int tap);

#endif
