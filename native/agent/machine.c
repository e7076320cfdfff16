#include "machine.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "exec.h"
#include "operations.h"
#include "procfs.h"

static const double DEFAULT_GRACE = 5.0;
static const double COLLECTING = 1.0; /* seconds for the killed to be gone */

void operation_ping(struct stream *stream, struct mp_value body) {
    struct mp_value value;
    struct mp_bytes payload = {0};
    size_t mark;
    if (mp_get(body, "payload", &value) && !mp_bytes(value, &payload)) {
        stream_fail(stream, EPROTO, "parameter 'payload' must be bytes");
        return;
    }
    struct buffer *out = stream_begin(stream, FRAME_RESULT, &mark);
    mp_write_map(out, 1);
    mp_write_str(out, "payload");
    mp_write_bin(out, payload.at, payload.size);
    stream_finish(stream, mark);
}

struct totals {
    unsigned long long processes, threads, ticks;
};

static bool add_up(const struct proc_stat *stat, void *context) {
    struct totals *totals = context;
    totals->processes++;
    totals->threads += (unsigned long long)(stat->threads > 0 ? stat->threads : 0);
    totals->ticks += stat->user_ticks + stat->system_ticks;
    return true;
}

static void write_count(struct buffer *out, const char *key, bool known, uint64_t value) {
    mp_write_str(out, key);
    if (known)
        mp_write_uint(out, value);
    else
        mp_write_nil(out);
}

static void write_number(struct buffer *out, const char *key, bool known, double value) {
    mp_write_str(out, key);
    if (known)
        mp_write_double(out, value);
    else
        mp_write_nil(out);
}

static bool read_load(double *load) {
    FILE *file = fopen("/proc/loadavg", "re");
    bool known = file && fscanf(file, "%lf", load) == 1;
    if (file)
        fclose(file);
    return known;
}

/* Processor time of the living (from /proc) and of those that were collected. */
static double processor_seconds(const struct totals *totals) {
    struct rusage dead;
    getrusage(RUSAGE_CHILDREN, &dead);
    double seconds = (double)totals->ticks / (double)sysconf(_SC_CLK_TCK);
    return seconds + (double)(dead.ru_utime.tv_sec + dead.ru_stime.tv_sec) + (double)(dead.ru_utime.tv_usec + dead.ru_stime.tv_usec) / 1e6;
}

void operation_stats(struct stream *stream, struct mp_value body) {
    (void)body;
    struct agent *agent = stream_agent(stream);
    struct totals totals = {0};
    struct statvfs disk = {0};
    uint64_t memory = 0;
    double load = 0;
    size_t mark;
    uint64_t limit = agent->limits.memory, available = 0;
    bool listed = procfs_each(add_up, &totals), measured = limits_memory_usage(&agent->limits, &memory);
    if (agent->is_vm && procfs_memory(&limit, &available)) {
        memory = limit - available;
        measured = true;
    }
    bool has_disk = statvfs("/", &disk) == 0, has_load = read_load(&load);
    struct buffer *out = stream_begin(stream, FRAME_RESULT, &mark);
    mp_write_map(out, 9);
    write_count(out, "processes", listed, totals.processes);
    write_count(out, "threads", listed, totals.threads);
    write_count(out, "memory", measured, memory);
    write_count(out, "memory_limit", limit > 0, limit);
    write_number(out, "cpu_seconds", listed, processor_seconds(&totals));
    write_number(out, "uptime", true, monotonic_seconds() - agent->started);
    write_count(out, "disk_used", has_disk, (uint64_t)(disk.f_blocks - disk.f_bfree) * disk.f_frsize);
    write_count(out, "disk_total", has_disk, (uint64_t)disk.f_blocks * disk.f_frsize);
    write_number(out, "load", has_load, load);
    stream_finish(stream, mark);
}

/* Exchanges the string when the request has one; false when the stream was answered with an error. */
static bool take_replacement(struct stream *stream, struct mp_value body, const char *key, char **setting) {
    char *text;
    if (!take_user(stream, body, key, &text))
        return false;
    if (text) {
        free(*setting);
        *setting = text;
    }
    return true;
}

static bool take_limits(struct stream *stream, struct mp_value body, struct agent *agent) {
    struct mp_value limits;
    int64_t memory = (int64_t)agent->limits.memory, cpus = agent->limits.cpus;
    if (!mp_get(body, "limits", &limits))
        return true;
    if (!take_int(stream, limits, "memory", false, 0, INT64_MAX, &memory) || !take_int(stream, limits, "cpus", false, 0, 65536, &cpus))
        return false;
    agent->limits.memory = (uint64_t)memory;
    agent->limits.cpus = (unsigned)cpus;
    limits_changed(agent);
    return true;
}

static bool take_default_environment(struct stream *stream, struct mp_value body, struct agent *agent) {
    struct strings env = {0};
    struct mp_value value;
    if (!mp_get(body, "env", &value))
        return true;
    if (!take_environment(stream, body, &env)) {
        strings_free(&env);
        return false;
    }
    strings_free(&agent->env);
    agent->env = env;
    return true;
}

static bool take_time(struct stream *stream, struct mp_value body, const struct agent *agent) {
    int64_t nanoseconds = 0;
    if (!take_int(stream, body, "realtime_ns", false, 0, INT64_MAX, &nanoseconds))
        return false;
    struct timespec now = {.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000};
    if (agent->is_vm && nanoseconds > 0 && clock_settime(CLOCK_REALTIME, &now) != 0) {
        stream_fail(stream, errno, "realtime_ns");
        return false;
    }
    return true;
}

void operation_configure(struct stream *stream, struct mp_value body) {
    struct agent *agent = stream_agent(stream);
    char *hostname;
    if (!take_text(stream, body, "hostname", false, &hostname))
        return;
    bool named = !hostname || sethostname(hostname, strlen(hostname)) == 0;
    int problem = errno;
    free(hostname);
    if (!named)
        stream_fail(stream, problem, "hostname");
    else if (take_default_environment(stream, body, agent) && take_replacement(stream, body, "user", &agent->user) &&
             take_replacement(stream, body, "cwd", &agent->cwd) && take_limits(stream, body, agent) && take_time(stream, body, agent))
        stream_done(stream);
}

static void give_up(struct timer *timer) { container_of(timer, struct agent, grace)->loop.stopped = true; }

/* The killed are still collected, and how they ended is told; but who hangs in the kernel is not waited for. */
static void grace_over(struct timer *timer) {
    struct agent *agent = container_of(timer, struct agent, grace);
    signal_everybody(agent->is_init, SIGKILL);
    timer->fire = give_up;
    loop_arm(&agent->loop, timer, COLLECTING);
}

static bool all_told(const struct agent *agent) {
    for (size_t i = 0; i < PROCESS_BUCKETS; i++)
        if (agent->processes[i])
            return false;
    return true;
}

void machine_check_empty(struct agent *agent) {
    if (agent->shutting_down && all_told(agent) && waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD)
        agent->loop.stopped = true;
}

void machine_shut_down(struct agent *agent, double grace) {
    if (agent->shutting_down)
        return;
    agent->shutting_down = true;
    agent->grace.fire = grace_over;
    signal_everybody(agent->is_init, SIGTERM);
    /* A stopped process hears SIGTERM only when it goes on. */
    signal_everybody(agent->is_init, SIGCONT);
    loop_arm(&agent->loop, &agent->grace, grace);
}

void operation_shutdown(struct stream *stream, struct mp_value body) {
    struct agent *agent = stream_agent(stream);
    double grace = DEFAULT_GRACE;
    if (!take_seconds(stream, body, "grace", &grace))
        return;
    stream_done(stream);
    machine_shut_down(agent, grace);
}
