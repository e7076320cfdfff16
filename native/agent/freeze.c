#include "freeze.h"

#include <errno.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "agent.h"
#include "operations.h"

static const double THAWS_BY_ITSELF = 30.0; /* seconds, unless the host says otherwise: it may have died in the middle */

static void hold_connections(struct agent *agent, bool held) {
    agent->frozen = held;
    for (struct connection *connection = agent->connections; connection; connection = connection->next)
        connection->held = held;
}

static void release_disk(struct agent *agent) {
    loop_disarm(&agent->loop, &agent->thaws);
    if (agent->upper >= 0 && ioctl(agent->upper, FITHAW, 0) != 0)
        errno = 0; /* it was not frozen */
}

static void thaw(struct agent *agent) {
    release_disk(agent);
    hold_connections(agent, false);
}

static void waited_too_long(struct timer *timer) { thaw(container_of(timer, struct agent, thaws)); }

/* What is dirty is written before, so that writers stand still only for the rest. The agent waits for the disk: the machine is about to stop. */
static bool hold_disk_still(const struct agent *agent) {
    return agent->upper < 0 || (syncfs(agent->upper) == 0 && ioctl(agent->upper, FIFREEZE, 0) == 0);
}

void operation_freeze(struct stream *stream, struct mp_value body) {
    struct agent *agent = stream_agent(stream);
    bool disk = false;
    double seconds = THAWS_BY_ITSELF;
    if (!take_flag(stream, body, "disk", &disk) || !take_seconds(stream, body, "seconds", &seconds))
        return;
    hold_connections(agent, true);
    agent->thaws.fire = waited_too_long;
    loop_arm(&agent->loop, &agent->thaws, seconds);
    if (!disk || hold_disk_still(agent)) {
        stream_done(stream);
        return;
    }
    int problem = errno;
    thaw(agent);
    stream_fail(stream, problem, "the disk cannot be held still");
}

void operation_thaw(struct stream *stream, struct mp_value body) {
    (void)body;
    thaw(stream_agent(stream));
    stream_done(stream);
}

void freeze_wake_as_copy(struct agent *agent, struct connection *spared) {
    release_disk(agent);
    spared->held = agent->frozen = false;
    for (struct connection *connection = agent->connections; connection; connection = connection->next)
        /* With the primary one the machine would end; who has only that says on it that he is another (docs/agent-protocol.md, CANCEL on 0). */
        if (connection->held && !connection->primary)
            connection_fail(connection);
}
