/*
 * The user namespace of an unprivileged owner.
 *
 * Inside it the daemon is root. Where the system grants the caller a range of subordinate ids (and has the set-uid tools newuidmap and newgidmap) the
 * range is mapped, so that a sandbox has users of its own; otherwise the caller is its only user.
 */
#include "launch.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel.h"

/* Runs "TOOL PID 0 OWN 1 1 START COUNT"; true when it succeeded. */
static bool run_tool(const char *tool, pid_t target, unsigned own, const char *range) {
    char pid[16], self[16], start[32], *colon;
    snprintf(pid, sizeof pid, "%d", (int)target);
    snprintf(self, sizeof self, "%u", own);
    snprintf(start, sizeof start, "%s", range);
    colon = strchr(start, ':');
    if (colon == NULL) return false;
    *colon = '\0';
    pid_t child = fork();
    if (child == 0) {
        execlp(tool, tool, pid, "0", self, "1", "1", start, colon + 1, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* A helper that stays in the caller's namespace until the daemon has left it, then maps the ranges. */
static pid_t start_mapper(struct id_ranges ranges, int go) {
    pid_t daemon = getpid();
    unsigned uid = getuid(), gid = getgid();
    pid_t mapper = fork();
    if (mapper != 0) return mapper;
    char token;
    if (read(go, &token, 1) != 1) _exit(1);
    _exit(run_tool("newuidmap", daemon, uid, ranges.users) && run_tool("newgidmap", daemon, gid, ranges.groups) ? 0 : 1);
}

static const char *map_only_caller(unsigned uid, unsigned gid) {
    char map[32];
    snprintf(map, sizeof map, "0 %u 1", uid);
    if (write_text("/proc/self/uid_map", map) < 0) return "mapping the user";
    if (write_text("/proc/self/setgroups", "deny") < 0) return "giving up supplementary groups";
    snprintf(map, sizeof map, "0 %u 1", gid);
    return write_text("/proc/self/gid_map", map) < 0 ? "mapping the group" : NULL;
}

const char *enter_user_namespace(struct id_ranges ranges, bool *many_ids) {
    unsigned uid = geteuid(), gid = getegid();
    int go[2];
    pid_t mapper = -1;
    *many_ids = false;
    if (pipe(go) < 0) return "making a pipe";
    if (ranges.users != NULL && ranges.groups != NULL) mapper = start_mapper(ranges, go[0]);
    if (unshare(NS_NEWUSER) < 0) return "making a user namespace";
    if (mapper > 0) {
        int status = -1;
        if (write(go[1], "x", 1) == 1 && waitpid(mapper, &status, 0) == mapper) *many_ids = status == 0;
    }
    close(go[0]);
    close(go[1]);
    if (!*many_ids) {
        const char *problem = map_only_caller(uid, gid);
        if (problem != NULL) return problem;
    }
    if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0) return "becoming root of the user namespace";
    return NULL;
}
