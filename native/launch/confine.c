/*
 * The walls that are not namespaces: limits, capabilities, Landlock, seccomp. Once inside, none of them can be taken back.
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernel.h"

/* What root of a sandbox may still do. Each is limited to the sandbox's own files, processes and ports by the namespaces around it. */
static const int kept_capabilities[] = {CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_NET_BIND_SERVICE};

static int limit(int resource, rlim_t soft, rlim_t hard) {
    struct rlimit now;
    if (getrlimit(resource, &now) < 0) return -1;
    if (hard > now.rlim_max) hard = now.rlim_max; /* raising it is not ours to do */
    if (soft > hard) soft = hard;
    struct rlimit wanted = {.rlim_cur = soft, .rlim_max = hard};
    return setrlimit(resource, &wanted);
}

const char *set_limits(void) {
    static const struct { int resource; rlim_t soft, hard; } limits[] = {
        {RLIMIT_NOFILE, 1 << 16, 1 << 20},
        {RLIMIT_CORE, 0, 0},
        {RLIMIT_RTPRIO, 0, 0},
        {RLIMIT_NICE, 0, 0},
        {RLIMIT_MEMLOCK, 8 << 20, 8 << 20},
        {RLIMIT_MSGQUEUE, 819200, 819200},
        {RLIMIT_STACK, 8 << 20, RLIM_INFINITY},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limit(limits[i].resource, limits[i].soft, limits[i].hard) < 0) return "setting resource limits";
    return NULL;
}

static bool is_kept(int capability) {
    for (size_t i = 0; i < sizeof kept_capabilities / sizeof *kept_capabilities; i++)
        if (kept_capabilities[i] == capability) return true;
    return false;
}

static const char *drop_capabilities(void) {
    for (int capability = 0; capability < 64; capability++) {
        if (is_kept(capability)) continue;
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0) {
            if (errno == EINVAL) break; /* past the last one that this kernel knows */
            return "reducing the capability bounding set";
        }
    }
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0) return "clearing ambient capabilities";
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {0};
    for (size_t i = 0; i < sizeof kept_capabilities / sizeof *kept_capabilities; i++) {
        unsigned mask = 1u << (kept_capabilities[i] % 32);
        data[kept_capabilities[i] / 32].permitted |= mask;
        data[kept_capabilities[i] / 32].effective |= mask;
    }
    return syscall(SYS_capset, &header, data) < 0 ? "reducing capabilities" : NULL;
}

/* From ABI 6 on Landlock can forbid signals and abstract sockets towards anything outside: a second wall behind the namespaces. */
static const char *scope_by_landlock(int abi) {
    if (abi < 6) return NULL;
    struct landlock_rules rules = {.scoped = 3};
    int ruleset = (int)syscall(NR_LANDLOCK_CREATE_RULESET, &rules, sizeof rules, 0);
    if (ruleset < 0) return "making Landlock rules";
    long done = syscall(NR_LANDLOCK_RESTRICT_SELF, ruleset, 0);
    close(ruleset);
    return done < 0 ? "applying Landlock rules" : NULL;
}

static const char *filter_calls(int filter) {
    struct stat status;
    if (filter < 0 || fstat(filter, &status) < 0) return "reading the seccomp program";
    void *code = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, filter, 0);
    if (code == MAP_FAILED) return "reading the seccomp program";
    struct sock_fprog program = {.len = (unsigned short)((size_t)status.st_size / sizeof(struct sock_filter)), .filter = code};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0 ? "loading the seccomp program" : NULL;
}

/* Everything after which the process can do nothing but become the agent. */
const char *lock_down(const struct host *host) {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return "setting no_new_privs";
    const char *problem = drop_capabilities();
    if (problem == NULL) problem = scope_by_landlock(host->landlock);
    return problem != NULL ? problem : filter_calls(host->filter);
}
