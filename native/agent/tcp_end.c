#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "freeze.h"

enum { ANSWER_SIZE = 32768, ENDED_AT_MOST = 4096, DIAGNOSIS_PATIENCE = 2 };

/* Every state in which there is, or will be, another end. */
static const uint32_t CONNECTED = 1u << TCP_ESTABLISHED | 1u << TCP_SYN_SENT | 1u << TCP_SYN_RECV | 1u << TCP_FIN_WAIT1 | 1u << TCP_FIN_WAIT2 |
                                  1u << TCP_CLOSE_WAIT | 1u << TCP_LAST_ACK | 1u << TCP_CLOSING;

struct request {
    struct nlmsghdr header;
    struct inet_diag_req_v2 body;
};

static bool leads_outside(const struct inet_diag_msg *found) {
    const uint32_t *address = found->id.idiag_dst;
    if (found->idiag_family == AF_INET)
        return ntohl(address[0]) >> 24 != 127;
    struct in6_addr six;
    memcpy(&six, address, sizeof six);
    return !IN6_IS_ADDR_LOOPBACK(&six) && !(IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
}

static bool ask(int fd, uint16_t type, uint16_t flags, uint8_t family, const struct inet_diag_sockid *id) {
    struct request request = {
        .header = {.nlmsg_len = sizeof request, .nlmsg_type = type, .nlmsg_flags = NLM_F_REQUEST | flags},
        .body = {.sdiag_family = family, .sdiag_protocol = IPPROTO_TCP, .idiag_states = CONNECTED},
    };
    if (id)
        request.body.id = *id;
    return send(fd, &request, sizeof request, 0) == (ssize_t)sizeof request;
}

/* Collects the connections that one answer holds; false when it was the last. */
static bool collect(const uint8_t *answer, size_t size, struct inet_diag_msg *found, size_t *count) {
    for (size_t at = 0; at + sizeof(struct nlmsghdr) <= size;) {
        struct nlmsghdr header;
        memcpy(&header, answer + at, sizeof header);
        if (header.nlmsg_type == NLMSG_DONE || header.nlmsg_type == NLMSG_ERROR || header.nlmsg_len < sizeof header)
            return false;
        struct inet_diag_msg message;
        if (header.nlmsg_len >= NLMSG_LENGTH(sizeof message) && *count < ENDED_AT_MOST) {
            memcpy(&message, answer + at + NLMSG_HDRLEN, sizeof message);
            if (leads_outside(&message))
                found[(*count)++] = message;
        }
        at += NLMSG_ALIGN(header.nlmsg_len);
    }
    return true;
}

static void end_family(uint8_t family) {
    static uint8_t answer[ANSWER_SIZE];
    static struct inet_diag_msg found[ENDED_AT_MOST];
    size_t count = 0;
    struct timeval patience = {.tv_sec = DIAGNOSIS_PATIENCE};
    int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (fd < 0)
        return; /* a kernel without it has no way to end a connection of somebody else */
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (ask(fd, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family, NULL)) {
        ssize_t size;
        while ((size = recv(fd, answer, sizeof answer, 0)) > 0 && collect(answer, (size_t)size, found, &count))
            ;
        for (size_t i = 0; i < count; i++)
            ask(fd, SOCK_DESTROY, 0, family, &found[i].id);
    }
    close(fd);
}

void tcp_end_outside_connections(void) {
    end_family(AF_INET);
    end_family(AF_INET6);
}
