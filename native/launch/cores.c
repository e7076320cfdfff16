/* Which cores a sandbox is told to use: those that carry the fewest sandboxes of this owner. */
#include "daemon.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernel.h"

void find_cores(struct host *host) {
    unsigned long mask[CPUS_MAX / (8 * sizeof(unsigned long))] = {0};
    if (syscall(SYS_sched_getaffinity, 0, sizeof mask, mask) < 0) die("reading the cores");
    for (unsigned core = 0; core < CPUS_MAX; core++)
        if (mask[core / (8 * sizeof *mask)] >> (core % (8 * sizeof *mask)) & 1) host->cores[host->core_count++] = (uint16_t)core;
}

/* The least loaded cores, looked for from one that differs between daemons. NULL for all of them (`count` is 0, or no less than there are). */
uint16_t *choose_cores(struct daemon *daemon, unsigned count) {
    const struct host *host = &daemon->host;
    if (count == 0 || count >= host->core_count) return NULL;
    uint16_t *chosen = malloc(count * sizeof *chosen);
    if (chosen == NULL) die("choosing cores");
    size_t first = (size_t)getpid() % host->core_count;
    for (unsigned i = 0; i < count; i++) {
        size_t best = first;
        bool found = false;
        for (size_t step = 0; step < host->core_count; step++) {
            uint16_t core = host->cores[(first + step) % host->core_count];
            bool taken = false;
            for (unsigned j = 0; j < i; j++) taken = taken || chosen[j] == core;
            if (taken || (found && daemon->load[core] >= daemon->load[best])) continue;
            best = core;
            found = true;
        }
        chosen[i] = (uint16_t)best;
    }
    for (unsigned i = 0; i < count; i++) daemon->load[chosen[i]]++;
    return chosen;
}

/* Done by the daemon right after the clone: a process that has not run yet need not be moved from one core to another. */
int use_cores(pid_t process, const uint16_t *cores, unsigned count) {
    unsigned long mask[CPUS_MAX / (8 * sizeof(unsigned long))] = {0};
    for (unsigned i = 0; i < count; i++) mask[cores[i] / (8 * sizeof *mask)] |= 1ul << (cores[i] % (8 * sizeof *mask));
    return (int)syscall(SYS_sched_setaffinity, process, sizeof mask, mask);
}

void release_cores(struct daemon *daemon, const uint16_t *cores, unsigned count) {
    for (unsigned i = 0; cores != NULL && i < count; i++) daemon->load[cores[i]]--;
}
