#include "uplink.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent.h"
#include "inherited.h"
#include "interface.h"
#include "operations.h"
#include "pipes.h"

enum { FRAMES_AT_ONCE = 64, LEAST_MTU = 576, MOST_MTU = 65521 };

static void carry(struct agent *agent, struct source *from, const struct source *to) {
    for (int i = 0; i < FRAMES_AT_ONCE; i++) {
        ssize_t size = read(from->fd, agent->scratch, sizeof agent->scratch);
        if (size <= 0) {
            if (size == 0 || (errno != EAGAIN && errno != EINTR))
                loop_watch(&agent->loop, from, 0); /* the other side is gone for good */
            return;
        }
        if (write(to->fd, agent->scratch, (size_t)size) < 0)
            errno = 0; /* a frame is lost, as on any wire */
    }
}

static void came_in(struct source *source, uint32_t events) {
    (void)events;
    struct agent *agent = container_of(source, struct agent, uplink);
    carry(agent, source, &agent->tap);
}

static void goes_out(struct source *source, uint32_t events) {
    (void)events;
    struct agent *agent = container_of(source, struct agent, tap);
    carry(agent, source, &agent->uplink);
}

static void take_down(struct agent *agent) {
    loop_watch(&agent->loop, &agent->uplink, 0);
    loop_close(&agent->loop, &agent->tap);
}

/* The first time in a machine, be it new or a copy: what its kernel had of it, a copy has not. */
static bool make(const struct interface *interface, struct source *tap) {
    if (!interface_make(interface) || (tap->fd = interface_attach_tap()) < 0)
        return false;
    inherited_connections_end(interface, tap->fd);
    interface_leave_loopback(interface);
    return interface_add_default_route(interface);
}

static bool bring_up(struct agent *agent, const struct interface *interface) {
    take_down(agent);
    agent->tap = (struct source){.fd = -1, .ready = goes_out};
    agent->uplink.ready = came_in;
    bool made = interface_exists() ? (agent->tap.fd = interface_attach_tap()) >= 0 : make(interface, &agent->tap);
    if (made && set_nonblocking(agent->uplink.fd, true) && loop_watch(&agent->loop, &agent->tap, EPOLLIN) && loop_watch(&agent->loop, &agent->uplink, EPOLLIN))
        return true;
    int problem = errno;
    take_down(agent);
    errno = problem;
    return false;
}

static bool read_mac(const char *text, uint8_t *mac) {
    char rest;
    return sscanf(text, "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx%c", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5, &rest) == ETH_ALEN;
}

static bool take_interface(struct stream *stream, struct mp_value body, struct interface *interface) {
    char *address = NULL, *gateway = NULL, *mac = NULL;
    int64_t prefix, mtu;
    bool given = take_text(stream, body, "address", true, &address) && take_text(stream, body, "gateway", true, &gateway) &&
                 take_text(stream, body, "mac", true, &mac) && take_int(stream, body, "prefix", true, 1, 32, &prefix) &&
                 take_int(stream, body, "mtu", true, LEAST_MTU, MOST_MTU, &mtu);
    bool good = given && inet_pton(AF_INET, address, &interface->address) == 1 && inet_pton(AF_INET, gateway, &interface->gateway) == 1 &&
                read_mac(mac, interface->mac);
    if (good) {
        interface->prefix = (unsigned)prefix;
        interface->mtu = (uint32_t)mtu;
    } else if (given) {
        stream_fail(stream, EPROTO, "network needs IPv4 addresses in 'address' and 'gateway', and 'mac' as in 02:00:00:00:00:01");
    }
    free(address);
    free(gateway);
    free(mac);
    return good;
}

void operation_network(struct stream *stream, struct mp_value body) {
    struct agent *agent = stream_agent(stream);
    struct interface interface = {0};
    bool up = true;
    if (!take_flag(stream, body, "up", &up))
        return;
    if (agent->uplink.fd < 0) {
        stream_fail(stream, EOPNOTSUPP, "this agent was given no --uplink");
    } else if (!up) {
        take_down(agent);
        stream_done(stream);
    } else if (take_interface(stream, body, &interface)) {
        if (bring_up(agent, &interface))
            stream_done(stream);
        else
            stream_fail(stream, errno, "the network interface cannot be set up");
    }
}
