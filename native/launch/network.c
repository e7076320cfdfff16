/*
 * Network namespaces. Making one is the slowest single step of a start (0.4 ms), so the daemon makes it in its idle time: it moves itself
 * into a fresh one, which the next sandbox inherits, and moves on to another afterwards. It has no use for a network of its own.
 */
#include "launch.h"

#include <net/if.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernel.h"

const char *fresh_network(void) {
    if (unshare(NS_NEWNET) < 0) return "making a network namespace";
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (any < 0) return "opening a socket";
    struct ifreq loopback = {.ifr_flags = IFF_UP | IFF_RUNNING};
    strcpy(loopback.ifr_name, "lo");
    int done = ioctl(any, SIOCSIFFLAGS, &loopback);
    close(any);
    /* Lets everybody use ping's sockets, which need no capability; a user namespace with few ids cannot, and a kernel without them has no such file. */
    (void)write_text("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    return done < 0 ? "bringing the loopback up" : NULL;
}
