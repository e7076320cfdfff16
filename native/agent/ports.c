#include "ports.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"
#include "connection.h"

/* Somebody else in the machine may have a port open for a moment (seconds until it is tried again). */
static const double BUSY_AGAIN = 0.05;
static const char PREFIX[] = "vport";

struct port {
    struct port *next;
    struct agent *agent;
    struct source source; /* fd -1: not open, or in the hands of a connection */
    struct timer again;
    struct connection *prepared; /* for the next host */
    char path[64];
};

static void host_may_have_come(struct source *source, uint32_t events) {
    struct port *port = container_of(source, struct port, source);
    if (events & EPOLLHUP)
        return;
    struct connection *connection = port->prepared ? port->prepared : connection_prepare(port->agent);
    port->prepared = NULL;
    if (connection)
        connection_begin(connection, port, source);
    else
        loop_arm(&port->agent->loop, &port->again, BUSY_AGAIN);
}

void port_reopen(struct port *port) {
    if (!port->prepared)
        port->prepared = connection_prepare(port->agent);
    port->source = (struct source){.fd = open(port->path, O_RDWR | O_NONBLOCK | O_CLOEXEC), .ready = host_may_have_come};
    /* While the host is away the port is hung up all the time, so that only a change may wake the loop; that it came shows in the port being writable. */
    if (port->source.fd < 0 || !loop_watch(&port->agent->loop, &port->source, EPOLLOUT | EPOLLET))
        loop_arm(&port->agent->loop, &port->again, BUSY_AGAIN);
}

static void again(struct timer *timer) {
    struct port *port = container_of(timer, struct port, again);
    loop_close(&port->agent->loop, &port->source);
    port_reopen(port);
}

static bool is_known(const struct agent *agent, const char *path) {
    const struct port *port = agent->ports;
    while (port && strcmp(port->path, path) != 0)
        port = port->next;
    return port != NULL;
}

static void add_port(struct agent *agent, const char *name) {
    char path[sizeof ((struct port *)0)->path];
    if (snprintf(path, sizeof path, "/dev/%s", name) >= (int)sizeof path || is_known(agent, path))
        return;
    struct port *port = calloc(1, sizeof *port);
    if (!port)
        return;
    *port = (struct port){.next = agent->ports, .agent = agent, .source.fd = -1, .again.fire = again};
    memcpy(port->path, path, sizeof path);
    agent->ports = port;
    port_reopen(port);
}

static void add_all(struct agent *agent) {
    DIR *directory = opendir("/dev");
    if (!directory)
        return;
    for (struct dirent *entry; (entry = readdir(directory));)
        if (strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) == 0)
            add_port(agent, entry->d_name);
    closedir(directory);
}

static void device_came(struct source *source, uint32_t events) {
    (void)events;
    char message[8192];
    while (recv(source->fd, message, sizeof message, 0) > 0 || errno == ENOBUFS)
        ;
    add_all(container_of(source, struct agent, uevents));
}

bool ports_open(struct agent *agent) {
    agent->uevents.ready = device_came;
    if (!loop_watch(&agent->loop, &agent->uevents, EPOLLIN))
        return false;
    add_all(agent);
    return true;
}
