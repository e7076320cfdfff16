/* What the guest is shown of its limits: the files that lie over /proc/meminfo, /proc/cpuinfo and the list of processors. */
#ifndef AGENTENV_LIMITS_SHOWN_H
#define AGENTENV_LIMITS_SHOWN_H

#include <stdbool.h>
#include <stdint.h>

#include "loop.h"

struct agent;

struct limits {
    struct timer follow;    /* refreshes meminfo for a while after somebody has looked */
    unsigned follow_ups;    /* how many of those are left */
    int usage;              /* the file with the machine's memory use; -1: none */
    int oom_kills;          /* the file in which the kernel counts what it killed for want of memory; -1: none */
    int cpuinfo;            /* the whole machine's cpuinfo; -1: none */
    int meminfo;            /* what is written; -1: not shown */
    uint64_t memory;        /* bytes; 0: unlimited, nothing is shown */
    unsigned cpus;          /* 0: as many as there are */
};

/* Opens the files that the launcher made (none there: nothing is shown) and fills them. */
void limits_start(struct agent *agent);

/* New limits: rewrites everything. */
void limits_changed(struct agent *agent);

/* Memory in use has changed, maybe: rewrites meminfo. */
void limits_refresh(struct agent *agent);

/* Somebody has read meminfo (the launcher says so by a signal): rewrites it now, and every second until nobody has looked for a while. */
void limits_looked_at(struct agent *agent);

/* The machine's memory use in bytes; false where unknown. */
bool limits_memory_usage(const struct limits *limits, uint64_t *bytes);

/* How many processes the kernel has killed for want of memory; 0 where unknown. */
uint64_t limits_oom_kills(const struct limits *limits);

#endif
