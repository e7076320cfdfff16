#include "options.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool complain(const char *option, const char *expected) {
    fprintf(stderr, "agentenv-agent: %s needs %s\n", option, expected);
    return false;
}

static bool read_number(const char *option, const char *text, unsigned long long most, unsigned long long *number) {
    char *end;
    *number = strtoull(text, &end, 10);
    return (*text >= '0' && *text <= '9' && *end == '\0' && *number <= most) || complain(option, "a number");
}

static bool read_descriptor(const char *option, const char *text, int *fd) {
    unsigned long long number;
    if (!read_number(option, text, INT_MAX, &number))
        return false;
    *fd = (int)number;
    return fcntl(*fd, F_GETFD) >= 0 || complain(option, "an open descriptor");
}

static bool read_pair(struct agent *agent, const char *text) {
    const char *equals = strchr(text, '=');
    if (!equals || equals == text)
        return complain("--env", "NAME=VALUE");
    return strings_set(&agent->env, text, (size_t)(equals - text), equals + 1, strlen(equals + 1)) || complain("--env", "more memory");
}

static bool read_copy(char **setting, const char *text) {
    *setting = strdup(text);
    return *setting != NULL;
}

static bool read_option(struct options *options, struct agent *agent, const char *option, const char *value) {
    unsigned long long number = 0;
    struct limits *limits = &agent->limits;
    if (strcmp(option, "--stream") == 0)
        return read_descriptor(option, value, &options->stream);
    if (strcmp(option, "--listen") == 0)
        return read_descriptor(option, value, &options->listener);
    if (strcmp(option, "--uplink") == 0)
        return read_descriptor(option, value, &agent->uplink.fd);
    if (strcmp(option, "--memory-usage") == 0)
        return read_descriptor(option, value, &limits->usage);
    if (strcmp(option, "--oom-kills") == 0)
        return read_descriptor(option, value, &limits->oom_kills);
    if (strcmp(option, "--cpuinfo") == 0)
        return read_descriptor(option, value, &limits->cpuinfo);
    if (strcmp(option, "--env") == 0)
        return read_pair(agent, value);
    if (strcmp(option, "--user") == 0)
        return read_copy(&agent->user, value);
    if (strcmp(option, "--cwd") == 0)
        return read_copy(&agent->cwd, value);
    if (strcmp(option, "--memory-limit") == 0) {
        bool good = read_number(option, value, INT64_MAX, &number);
        limits->memory = number;
        return good;
    }
    if (strcmp(option, "--cpus") == 0) {
        bool good = read_number(option, value, 65536, &number);
        limits->cpus = (unsigned)number;
        return good;
    }
    if (strcmp(option, "--hostname") == 0) {
        options->hostname = value;
        return true;
    }
    fprintf(stderr, "agentenv-agent: unknown option %s\n", option);
    return false;
}

void options_defaults(struct options *options, struct agent *agent) {
    *options = (struct options){.stream = -1, .listener = -1};
    /* Whoever is not root can become nobody else. */
    if (geteuid() != 0 && asprintf(&agent->user, "%u", geteuid()) < 0)
        agent->user = NULL;
    agent->limits.usage = agent->limits.oom_kills = agent->limits.cpuinfo = agent->limits.meminfo = -1;
    agent->uevents.fd = agent->uplink.fd = agent->tap.fd = agent->upper = -1;
}

bool options_read(struct options *options, struct agent *agent, int count, char **arguments) {
    for (int i = 1; i < count; i += 2) {
        if (i + 1 == count)
            return complain(arguments[i], "a value");
        if (!read_option(options, agent, arguments[i], arguments[i + 1]))
            return false;
    }
    return options->stream >= 0 || options->listener >= 0 || complain("the agent", "--stream or --listen");
}
