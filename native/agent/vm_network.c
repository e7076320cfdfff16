#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vm.h"

static const double INTERFACE_PATIENCE = 30.0; /* seconds for its driver to make it */

static struct ifreq request_for(const char *name) {
    struct ifreq request = {0};
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    return request;
}

static bool bring_up(int fd, const char *name) {
    struct ifreq request = request_for(name);
    if (ioctl(fd, SIOCGIFFLAGS, &request) != 0)
        return false;
    request.ifr_flags |= IFF_UP;
    return ioctl(fd, SIOCSIFFLAGS, &request) == 0;
}

static bool put_address(int fd, unsigned long call, const char *name, struct in_addr address) {
    struct ifreq request = request_for(name);
    struct sockaddr_in inet = {.sin_family = AF_INET, .sin_addr = address};
    memcpy(&request.ifr_addr, &inet, sizeof inet);
    return ioctl(fd, call, &request) == 0;
}

static bool add_default_route(int fd, struct in_addr gateway) {
    struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
    struct sockaddr_in any = {.sin_family = AF_INET}, through = {.sin_family = AF_INET, .sin_addr = gateway};
    memcpy(&route.rt_dst, &any, sizeof any);
    memcpy(&route.rt_genmask, &any, sizeof any);
    memcpy(&route.rt_gateway, &through, sizeof through);
    return ioctl(fd, SIOCADDRT, &route) == 0;
}

static void await_interface(int fd, const char *name, int uevents) {
    double deadline = monotonic_seconds() + INTERFACE_PATIENCE;
    struct ifreq request = request_for(name);
    while (ioctl(fd, SIOCGIFINDEX, &request) != 0)
        if (!vm_await_device(uevents, deadline))
            vm_fail(0, "there is no network interface %s", name);
}

/* NAME,ADDRESS/PREFIX,GATEWAY */
static void set_up_interface(int fd, const char *wish, int uevents) {
    char name[IFNAMSIZ] = "", address_text[INET_ADDRSTRLEN] = "", gateway_text[INET_ADDRSTRLEN] = "", rest;
    unsigned prefix = 0;
    struct in_addr address, gateway;
    if (sscanf(wish, "%15[^,],%15[0-9.]/%u,%15[0-9.]%c", name, address_text, &prefix, gateway_text, &rest) != 4 || prefix > 32 ||
        inet_pton(AF_INET, address_text, &address) != 1 || inet_pton(AF_INET, gateway_text, &gateway) != 1)
        vm_fail(0, "agentenv.ip must be INTERFACE,ADDRESS/PREFIX,GATEWAY, not '%s'", wish);
    struct in_addr mask = {.s_addr = prefix ? htonl(~0u << (32 - prefix)) : 0};
    await_interface(fd, name, uevents);
    if (!put_address(fd, SIOCSIFADDR, name, address) || !put_address(fd, SIOCSIFNETMASK, name, mask) || !bring_up(fd, name) ||
        !add_default_route(fd, gateway))
        vm_fail(errno, "cannot set up the network interface %s", name);
}

void vm_set_up_network(const struct vm_settings *settings, int uevents) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || !bring_up(fd, "lo"))
        vm_fail(errno, "cannot set up the loopback");
    if (*settings->ip)
        set_up_interface(fd, settings->ip, uevents);
    close(fd);
}
