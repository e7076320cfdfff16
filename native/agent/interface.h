/* The network interface of a machine whose kernel has none: a bridge that stays as long as the machine, and below it a tap that comes and
 * goes. gVisor cannot write a tap down in a checkpoint, but connections through a bridge it can, so that they outlive one. */
#ifndef AGENTENV_INTERFACE_H
#define AGENTENV_INTERFACE_H

#include <net/ethernet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

struct interface {
    struct in_addr address, gateway;
    unsigned prefix;
    uint8_t mac[ETH_ALEN];
    uint32_t mtu; /* of IP packets */
};

bool interface_exists(void);

/* Each of these is false (or -1) with errno when the kernel refuses. */
bool interface_make(const struct interface *interface);
bool interface_add_default_route(const struct interface *interface);
int interface_attach_tap(void);

/* A machine restored from a checkpoint finds its address on the loopback, with a route to everywhere (docs/isolation.md). */
void interface_leave_loopback(const struct interface *interface);

#endif
