#include "procfs.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 4, TREE_MOST = 32768, NUMBERS_MOST = 1 << 22 }; /* the kernel's PID_MAX_LIMIT */

static bool read_stat(const char *pid, struct proc_stat *stat) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0)
        return false;
    text[size] = '\0';
    /* The name in parentheses may hold anything, a closing parenthesis too: the last one ends it. */
    const char *rest = strrchr(text, ')');
    stat->pid = (pid_t)strtol(pid, NULL, 10);
    return rest && sscanf(rest + 1, " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %ld", &stat->state, &stat->parent,
                          &stat->group, &stat->session, &stat->user_ticks, &stat->system_ticks, &stat->threads) == 7;
}

bool procfs_each(bool (*each)(const struct proc_stat *stat, void *context), void *context) {
    DIR *directory = opendir("/proc");
    if (!directory)
        return false;
    struct dirent *entry;
    struct proc_stat stat;
    bool lists = false; /* a /proc that is no procfs holds no processes, not even the reader */
    while ((entry = readdir(directory))) {
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9' || !read_stat(entry->d_name, &stat))
            continue;
        lists = true;
        if (!each(&stat, context))
            break;
    }
    closedir(directory);
    return lists;
}

struct hunt {
    pid_t session;
    int found;
};

static bool kill_member(const struct proc_stat *stat, void *context) {
    struct hunt *hunt = context;
    if (stat->session == hunt->session && stat->state != 'Z' && kill(stat->pid, SIGKILL) == 0)
        hunt->found++;
    return true;
}

/* The kernel counts upwards, so a new child has the highest number unless it began again from below. */
static pid_t highest_number(pid_t known) {
    pid_t child = vfork();
    if (child == 0)
        _exit(0);
    if (child > 0)
        waitpid(child, NULL, 0);
    return child > known ? child : NUMBERS_MOST;
}

/* Without a list of processes: asks the kernel about every number there can be. */
static int kill_by_number(pid_t leader) {
    int found = 0;
    pid_t last = highest_number(leader);
    for (pid_t pid = 2; pid <= last; pid++)
        if (getsid(pid) == leader && kill(pid, SIGKILL) == 0)
            found++;
    return found;
}

void kill_session(pid_t leader) {
    kill(-leader, SIGKILL);
    /* A member may fork while the list is read, so it is read again until nobody is left. */
    for (int round = 0; round < ROUNDS; round++) {
        struct hunt hunt = {leader, 0};
        if (!procfs_each(kill_member, &hunt))
            hunt.found = kill_by_number(leader);
        if (hunt.found == 0)
            return;
    }
}

/* The descendants of the agent, found in rounds since /proc is not sorted by kinship. */
struct family {
    pid_t *members;
    size_t count, capacity;
    bool grew;
};

static bool is_member(const struct family *family, pid_t pid) {
    for (size_t i = 0; i < family->count; i++)
        if (family->members[i] == pid)
            return true;
    return false;
}

static bool join_family(const struct proc_stat *stat, void *context) {
    struct family *family = context;
    if (family->count == family->capacity || !is_member(family, stat->parent) || is_member(family, stat->pid))
        return true;
    family->members[family->count++] = stat->pid;
    family->grew = true;
    return true;
}

static struct family gather_family(void) {
    struct family family = {.members = malloc(TREE_MOST * sizeof(pid_t)), .capacity = TREE_MOST, .grew = true};
    if (!family.members)
        return (struct family){0};
    family.members[family.count++] = getpid();
    while (family.grew) {
        family.grew = false;
        procfs_each(join_family, &family);
    }
    return family;
}

void signal_everybody(bool is_init, int signal) {
    if (is_init) {
        kill(-1, signal);
        return;
    }
    struct family family = gather_family();
    for (size_t i = 1; i < family.count; i++)
        kill(family.members[i], signal);
    free(family.members);
}

struct census {
    const struct family *family; /* NULL: everybody counts */
    bool running;
};

static bool look_for_running(const struct proc_stat *stat, void *context) {
    struct census *census = context;
    bool counts = stat->pid != getpid() && (!census->family || is_member(census->family, stat->pid));
    census->running |= counts && !strchr("TtZX", stat->state);
    return !census->running;
}

bool everybody_stopped(bool is_init) {
    struct family family = {0};
    if (!is_init)
        family = gather_family();
    struct census census = {.family = is_init ? NULL : &family};
    procfs_each(look_for_running, &census);
    free(family.members);
    return !census.running;
}

bool procfs_memory(uint64_t *total, uint64_t *available) {
    unsigned long long first, third;
    FILE *file = fopen("/proc/meminfo", "re");
    bool known = file && fscanf(file, "MemTotal: %llu kB\nMemFree: %*u kB\nMemAvailable: %llu kB", &first, &third) == 2;
    if (file)
        fclose(file);
    if (known) {
        *total = first * 1024;
        *available = third * 1024;
    }
    return known;
}
