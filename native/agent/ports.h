/* The virtio-serial ports of a virtual machine: each is one connection to the host at a time, for as long as the host has its end open. */
#ifndef AGENTENV_PORTS_H
#define AGENTENV_PORTS_H

#include <stdbool.h>

struct agent;
struct port;

/* Opens all ports there are, and those that the kernel will tell of through agent->uevents. False with errno. */
bool ports_open(struct agent *agent);

/* The connection over a port has ended (its descriptor is closed): waits for the host to come anew. */
void port_reopen(struct port *port);

#endif
