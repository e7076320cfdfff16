#include "inherited.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/ethernet.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const TABLES[] = {"/proc/net/tcp", "/proc/net/tcp6"};
enum { TRIES = 100, BETWEEN_TRIES = 2 /* milliseconds */, ADDRESS_DIGITS = 8, LINE_SIZE = 512, TTL = 64 };

struct ends {
    struct in_addr here, there;
    uint16_t port_here, port_there;
};

struct frame {
    struct ether_header ethernet;
    struct iphdr ip;
    struct tcphdr tcp;
} __attribute__((packed));

static uint16_t folded(uint32_t sum) {
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

static uint32_t summed(const void *bytes, size_t size) {
    uint32_t sum = 0;
    uint16_t word;
    for (size_t i = 0; i + sizeof word <= size; i += sizeof word) {
        memcpy(&word, (const uint8_t *)bytes + i, sizeof word);
        sum += word;
    }
    return sum;
}

static void disturb(const struct interface *interface, int tap, const struct ends *ends) {
    struct frame frame = {
        .ethernet = {.ether_type = htons(ETHERTYPE_IP)},
        .ip = {.version = IPVERSION, .ihl = sizeof frame.ip / 4, .tot_len = htons(sizeof frame.ip + sizeof frame.tcp), .ttl = TTL},
        .tcp = {.source = htons(ends->port_there), .dest = htons(ends->port_here), .doff = sizeof frame.tcp / 4, .ack = 1},
    };
    memcpy(frame.ethernet.ether_dhost, interface->mac, sizeof interface->mac);
    frame.ip.protocol = IPPROTO_TCP;
    frame.ip.saddr = ends->there.s_addr;
    frame.ip.daddr = ends->here.s_addr;
    frame.ip.check = folded(summed(&frame.ip, sizeof frame.ip));
    /* The checksum of TCP covers the addresses, the protocol and the length too (RFC 9293, 3.1). */
    uint32_t sum = summed(&frame.ip.saddr, 2 * sizeof frame.ip.saddr) + htons(IPPROTO_TCP) + htons(sizeof frame.tcp);
    frame.tcp.check = folded(sum + summed(&frame.tcp, sizeof frame.tcp));
    if (write(tap, &frame, sizeof frame) < 0)
        errno = 0; /* it is tried again */
}

/* The last digits of an address in such a table are the IPv4 one, in the machine's order; an IPv6 one that is none has no way out here. */
static bool read_end(const char *text, struct in_addr *address, uint16_t *port) {
    const char *colon = strchr(text, ':');
    unsigned long number;
    unsigned found;
    if (!colon || colon - text < ADDRESS_DIGITS || sscanf(colon - ADDRESS_DIGITS, "%8lx:%4x", &number, &found) != 2)
        return false;
    address->s_addr = (in_addr_t)number;
    *port = (uint16_t)found;
    return true;
}

static bool leads_outside(const struct interface *interface, const struct ends *ends, unsigned state) {
    in_addr_t there = ends->there.s_addr;
    return state != TCP_CLOSE && state != TCP_LISTEN && state != TCP_TIME_WAIT && there != INADDR_ANY && there != interface->address.s_addr &&
           ntohl(there) >> IN_CLASSA_NSHIFT != IN_LOOPBACKNET;
}

static unsigned disturb_all(const struct interface *interface, int tap, const char *table) {
    char line[LINE_SIZE], here[64], there[64];
    unsigned state, count = 0;
    struct ends ends;
    FILE *file = fopen(table, "re");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%*s %63s %63s %x", here, there, &state) != 3 || !read_end(here, &ends.here, &ends.port_here) ||
            !read_end(there, &ends.there, &ends.port_there) || !leads_outside(interface, &ends, state))
            continue;
        disturb(interface, tap, &ends);
        count++;
    }
    fclose(file);
    return count;
}

void inherited_connections_end(const struct interface *interface, int tap) {
    for (unsigned tries = 0; tries < TRIES; tries++) {
        unsigned count = 0;
        for (size_t i = 0; i < sizeof TABLES / sizeof *TABLES; i++)
            count += disturb_all(interface, tap, TABLES[i]);
        if (count == 0)
            return;
        poll(NULL, 0, BETWEEN_TRIES); /* the kernel tells nobody when a connection of somebody else ends */
    }
}
