#include "limits_shown.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"

static const char MEMINFO[] = "/run/agentenv/meminfo";
static const char CPUINFO[] = "/run/agentenv/cpuinfo";
static const char ONLINE[] = "/run/agentenv/cpu_online";
static const double FOLLOWING = 1.0; /* seconds from one refresh to the next while somebody looks */
enum { FOLLOW_UPS = 15, CPUINFO_MOST = 4 << 20, CPUINFO_STEP = 16384 };

bool limits_memory_usage(const struct limits *limits, uint64_t *bytes) {
    char text[32];
    ssize_t size = limits->usage < 0 ? -1 : pread(limits->usage, text, sizeof text - 1, 0);
    if (size <= 0)
        return false;
    text[size] = '\0';
    *bytes = strtoull(text, NULL, 10);
    return true;
}

/* `memory.events` of a version 2 cgroup or `memory.oom_control` of a version 1 one: a line each for a name and its count. */
uint64_t limits_oom_kills(const struct limits *limits) {
    static const char WANTED[] = "\noom_kill ";
    char text[512] = "\n";
    ssize_t size = limits->oom_kills < 0 ? -1 : pread(limits->oom_kills, text + 1, sizeof text - 2, 0);
    if (size <= 0)
        return 0;
    text[1 + size] = '\0';
    const char *found = strstr(text, WANTED);
    return found ? strtoull(found + sizeof WANTED - 1, NULL, 10) : 0;
}

/* The file's size never changes once it is written, so that a reader at the same moment sees old or new figures and nothing torn in two. */
void limits_refresh(struct agent *agent) {
    struct limits *limits = &agent->limits;
    if (limits->meminfo < 0 || limits->memory == 0)
        return;
    char text[512];
    uint64_t used = 0;
    limits_memory_usage(limits, &used);
    unsigned long long total = limits->memory / 1024, left = used < limits->memory ? (limits->memory - used) / 1024 : 0;
    int size = snprintf(text, sizeof text,
                        "MemTotal:       %12llu kB\nMemFree:        %12llu kB\nMemAvailable:   %12llu kB\nBuffers:        %12d kB\n"
                        "Cached:         %12d kB\nSwapCached:     %12d kB\nSwapTotal:      %12d kB\nSwapFree:       %12d kB\nShmem:          %12d kB\n",
                        total, left, left, 0, 0, 0, 0, 0, 0);
    if (pwrite(limits->meminfo, text, (size_t)size, 0) < 0)
        limits->meminfo = -1;
}

static void follow(struct timer *timer) {
    struct limits *limits = container_of(timer, struct limits, follow);
    struct agent *agent = container_of(limits, struct agent, limits);
    limits_refresh(agent);
    if (limits->follow_ups-- > 1)
        loop_arm(&agent->loop, timer, FOLLOWING);
}

void limits_looked_at(struct agent *agent) {
    limits_refresh(agent);
    if (agent->limits.meminfo < 0)
        return;
    agent->limits.follow_ups = FOLLOW_UPS;
    loop_arm(&agent->loop, &agent->limits.follow, FOLLOWING);
}

/* Writes over what was there and cuts the rest, so that whoever has the file open or mounted goes on seeing the same file. */
static void overwrite(const char *path, const char *text, size_t size) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (pwrite(fd, text, size, 0) == (ssize_t)size && ftruncate(fd, (off_t)size) != 0)
        fprintf(stderr, "agentenv-agent: cannot cut %s: %s\n", path, strerror(errno));
    close(fd);
}

static void show_online(unsigned cpus) {
    char text[32];
    int size = cpus == 1 ? snprintf(text, sizeof text, "0\n") : snprintf(text, sizeof text, "0-%u\n", cpus - 1);
    overwrite(ONLINE, text, (size_t)size);
}

/* Where the block of the processor number `cpus` starts in what was read so far, or NULL. Blocks are parted by empty lines. */
static const char *after_blocks(const char *text, unsigned cpus) {
    for (; cpus; cpus--) {
        text = strstr(text, "\n\n");
        if (!text)
            return NULL;
        text += 2;
    }
    return text;
}

/* The first `cpus` processors of the whole machine's list; only so much of it is read as is shown, since the kernel takes its time for each. */
static void show_cpuinfo(int source, unsigned cpus) {
    char *text = malloc(CPUINFO_STEP + 1);
    size_t used = 0, capacity = CPUINFO_STEP;
    const char *end = NULL;
    while (text && !end && used < CPUINFO_MOST) {
        ssize_t size = pread(source, text + used, capacity - used, (off_t)used);
        if (size <= 0)
            break;
        used += (size_t)size;
        text[used] = '\0';
        end = after_blocks(text, cpus);
        if (!end && used == capacity) {
            char *larger = realloc(text, 2 * capacity + 1);
            if (!larger)
                break;
            text = larger;
            capacity *= 2;
        }
    }
    if (text && used)
        overwrite(CPUINFO, text, end ? (size_t)(end - text) : used);
    free(text);
}

void limits_changed(struct agent *agent) {
    struct limits *limits = &agent->limits;
    limits_refresh(agent);
    if (limits->cpus == 0)
        return;
    show_online(limits->cpus);
    if (limits->cpuinfo >= 0)
        show_cpuinfo(limits->cpuinfo, limits->cpus);
}

void limits_start(struct agent *agent) {
    struct limits *limits = &agent->limits;
    limits->follow.fire = follow;
    limits->meminfo = open(MEMINFO, O_WRONLY | O_CLOEXEC);
    limits_changed(agent);
}
