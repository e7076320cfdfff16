/* The command line. */
#ifndef AGENTENV_OPTIONS_H
#define AGENTENV_OPTIONS_H

#include "agent.h"

struct options {
    int stream, listener; /* -1: not given */
    const char *hostname; /* NULL: left as it is */
};

/* Nothing given. */
void options_defaults(struct options *options, struct agent *agent);

/* Reads the command line; what lasts goes into the agent. False, and a sentence on stderr, when it is wrong. */
bool options_read(struct options *options, struct agent *agent, int count, char **arguments);

#endif
