/* Starting a program: everything between fork and exec. */
#ifndef AGENTENV_SPAWN_H
#define AGENTENV_SPAWN_H

#include <sys/types.h>

#include "agent.h"
#include "users.h"

struct spawn_request {
    char *const *argv;
    char *const *envp;
    const char *path; /* where argv[0] without a slash is looked for */
    const char *cwd;
    const struct user *user;
    int in, out, err; /* become 0, 1, 2 */
    bool terminal;    /* `in` becomes the controlling terminal */
};

/* Which step failed, for the message. */
struct spawn_failure {
    int number;
    const char *step;
};

/* Runs the program as the leader of a session and process group of its own. Returns once it has been executed: the pid, or -1 and the failure. */
pid_t spawn(const struct agent *agent, const struct spawn_request *request, struct spawn_failure *failure);

#endif
