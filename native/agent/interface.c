#include "interface.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static const char BRIDGE[] = "eth0", TAP[] = "uplink", LOOPBACK[] = "lo", KIND[] = "bridge";
enum { ANSWER_SIZE = 4096 };

struct message {
    struct nlmsghdr header;
    uint8_t rest[256];
};

static void begin(struct message *message, uint16_t type, uint16_t flags, const void *body, size_t size) {
    *message = (struct message){.header = {.nlmsg_len = (uint32_t)NLMSG_LENGTH(size), .nlmsg_type = type}};
    message->header.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    memcpy(message->rest, body, size);
}

static uint8_t *end_of(struct message *message) { return (uint8_t *)message + NLMSG_ALIGN(message->header.nlmsg_len); }

static void add(struct message *message, uint16_t type, const void *data, size_t size) {
    struct rtattr attribute = {.rta_len = (uint16_t)RTA_LENGTH(size), .rta_type = type};
    memcpy(end_of(message), &attribute, sizeof attribute);
    if (size)
        memcpy(end_of(message) + RTA_LENGTH(0), data, size);
    message->header.nlmsg_len = NLMSG_ALIGN(message->header.nlmsg_len) + (uint32_t)RTA_ALIGN(attribute.rta_len);
}

static bool is_done(const uint8_t *answer, ssize_t size) {
    struct nlmsghdr header;
    struct nlmsgerr result;
    if (size < (ssize_t)NLMSG_LENGTH(sizeof result.error))
        return false;
    memcpy(&header, answer, sizeof header);
    memcpy(&result.error, answer + NLMSG_HDRLEN, sizeof result.error);
    errno = header.nlmsg_type == NLMSG_ERROR ? -result.error : EPROTO;
    return errno == 0;
}

static bool ask(const struct message *message) {
    uint8_t answer[ANSWER_SIZE];
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0)
        return false;
    bool done = send(fd, message, message->header.nlmsg_len, 0) >= 0 && is_done(answer, recv(fd, answer, sizeof answer, 0));
    int problem = errno;
    close(fd);
    errno = problem;
    return done;
}

static bool make_bridge(const struct interface *interface) {
    struct message message;
    struct ifinfomsg link = {0};
    uint32_t frame = interface->mtu + ETH_HLEN; /* what gVisor calls the MTU of a bridge */
    struct {
        struct rtattr head;
        char kind[RTA_ALIGN(sizeof KIND)];
    } info = {.head = {.rta_len = (uint16_t)RTA_LENGTH(sizeof KIND - 1), .rta_type = IFLA_INFO_KIND}};
    memcpy(info.kind, KIND, sizeof KIND);
    begin(&message, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &link, sizeof link);
    add(&message, IFLA_IFNAME, BRIDGE, sizeof BRIDGE);
    add(&message, IFLA_ADDRESS, interface->mac, sizeof interface->mac);
    add(&message, IFLA_MTU, &frame, sizeof frame);
    add(&message, IFLA_LINKINFO, &info, sizeof info);
    return ask(&message);
}

static bool change_address(uint16_t type, const char *name, unsigned prefix, struct in_addr address) {
    struct message message;
    struct ifaddrmsg wish = {.ifa_family = AF_INET, .ifa_prefixlen = (uint8_t)prefix, .ifa_index = if_nametoindex(name)};
    begin(&message, type, type == RTM_NEWADDR ? NLM_F_CREATE : 0, &wish, sizeof wish);
    add(&message, IFA_LOCAL, &address, sizeof address);
    add(&message, IFA_ADDRESS, &address, sizeof address);
    return ask(&message);
}

bool interface_exists(void) { return if_nametoindex(BRIDGE) != 0; }

bool interface_make(const struct interface *interface) {
    return make_bridge(interface) && change_address(RTM_NEWADDR, BRIDGE, interface->prefix, interface->address);
}

bool interface_add_default_route(const struct interface *interface) {
    struct message message;
    struct rtmsg route = {.rtm_family = AF_INET, .rtm_table = RT_TABLE_MAIN, .rtm_protocol = RTPROT_BOOT, .rtm_type = RTN_UNICAST};
    uint32_t bridge = if_nametoindex(BRIDGE);
    begin(&message, RTM_NEWROUTE, NLM_F_CREATE, &route, sizeof route);
    add(&message, RTA_GATEWAY, &interface->gateway, sizeof interface->gateway);
    add(&message, RTA_OIF, &bridge, sizeof bridge);
    return ask(&message);
}

static bool put_below_bridge(void) {
    struct message message;
    struct ifinfomsg link = {.ifi_index = (int)if_nametoindex(TAP)};
    uint32_t bridge = if_nametoindex(BRIDGE);
    begin(&message, RTM_NEWLINK, 0, &link, sizeof link);
    add(&message, IFLA_MASTER, &bridge, sizeof bridge);
    return ask(&message);
}

int interface_attach_tap(void) {
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    memcpy(request.ifr_name, TAP, sizeof TAP);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (ioctl(fd, TUNSETIFF, &request) == 0 && put_below_bridge())
        return fd;
    int problem = errno;
    close(fd);
    errno = problem;
    return -1;
}

void interface_leave_loopback(const struct interface *interface) {
    if (!change_address(RTM_DELADDR, LOOPBACK, 0, interface->address))
        errno = 0; /* a machine that was not restored never had it there */
}
