#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/random.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "freeze.h"
#include "job.h"
#include "machine.h"
#include "names.h"
#include "operations.h"

static const char HOOKS[] = "/etc/agentenv/restored.d";
enum { ENTROPY_MOST = 512, HOOK_SECONDS = 30, MACHINE_ID_SIZE = 32 };

struct restoration {
    uint8_t entropy[ENTROPY_MOST];
    size_t entropy_size;
    int64_t realtime_ns;
    double received; /* when it was that time, as far as can be known here (monotonic) */
    char *hostname, *machine_id;
    bool is_vm, hooks;
};

/* New bytes for the kernel's pool, so that two copies of one snapshot do not draw the same numbers.
 * Crediting them needs a privilege; mixing them in does not. */
static void stir_entropy(const struct restoration *restoration) {
    _Alignas(struct rand_pool_info) uint8_t memory[sizeof(struct rand_pool_info) + ENTROPY_MOST];
    struct rand_pool_info *pool = (struct rand_pool_info *)memory;
    int fd = restoration->entropy_size ? open("/dev/urandom", O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    pool->buf_size = (int)restoration->entropy_size;
    pool->entropy_count = 8 * pool->buf_size;
    memcpy(memory + offsetof(struct rand_pool_info, buf), restoration->entropy, restoration->entropy_size);
    if (ioctl(fd, RNDADDENTROPY, pool) == 0)
        ioctl(fd, RNDRESEEDCRNG);
    else if (write(fd, restoration->entropy, restoration->entropy_size) < 0)
        errno = 0; /* a read-only /dev: the kernel is the host's own then, and its pool was never copied */
    close(fd);
}

static void set_clock(const struct restoration *restoration) {
    /* A slow machine is a while on its way from the host's word to here. */
    int64_t nanoseconds = restoration->realtime_ns + (int64_t)((monotonic_seconds() - restoration->received) * 1e9);
    struct timespec now = {.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000};
    /* Only a virtual machine has a clock of its own; in a namespace it is the host's, right already and not ours to set. */
    if (restoration->realtime_ns > 0 && clock_settime(CLOCK_REALTIME, &now) != 0)
        errno = 0;
}

static void write_machine_id(struct job_output *output, const char *id) {
    char line[MACHINE_ID_SIZE + 2];
    int size = snprintf(line, sizeof line, "%s\n", id);
    int fd = open("/etc/machine-id", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0444);
    if (fd < 0 || write(fd, line, (size_t)size) != size)
        job_fail(output, errno, "/etc/machine-id");
    close(fd);
}

static void rename_machine(struct job_output *output, const char *name) {
    char before[HOST_NAME_MAX + 1] = "";
    if (gethostname(before, sizeof before - 1) == 0)
        names_replace(before, name);
    if (sethostname(name, strlen(name)) != 0)
        job_fail(output, errno, "hostname");
}

static void run_hook(struct job_output *output, const char *path) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        char *const argv[] = {(char *)path, NULL}, *const envp[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", NULL};
        setsid();
        alarm(HOOK_SECONDS);
        execve(path, argv, envp);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        job_fail(output, errno, "%s", path);
    if (WIFSIGNALED(status))
        job_error(output, "EIO", "%s was ended by signal %d", path, WTERMSIG(status));
    if (WEXITSTATUS(status) != 0)
        job_error(output, "EIO", "%s ended with status %d", path, WEXITSTATUS(status));
}

static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static void run_hooks(struct job_output *output) {
    struct dirent **entries;
    char path[PATH_MAX];
    int count = scandir(HOOKS, &entries, is_visible, alphasort);
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", HOOKS, entries[i]->d_name);
        if (access(path, X_OK) == 0)
            run_hook(output, path);
    }
}

static void work(struct job_output *output, void *argument) {
    struct restoration *restoration = argument;
    size_t mark;
    stir_entropy(restoration);
    if (restoration->is_vm)
        tcp_end_outside_connections();
    set_clock(restoration);
    if (restoration->hostname)
        rename_machine(output, restoration->hostname);
    if (restoration->machine_id)
        write_machine_id(output, restoration->machine_id);
    if (restoration->hooks)
        run_hooks(output);
    mp_write_map(job_begin(output, FRAME_RESULT, &mark), 0);
    job_finish(output, mark);
}

static bool take_entropy(struct stream *stream, struct mp_value body, struct restoration *restoration) {
    struct mp_value value;
    struct mp_bytes bytes;
    if (!mp_get(body, "entropy", &value))
        return true;
    if (!mp_bytes(value, &bytes) || bytes.size > ENTROPY_MOST) {
        stream_fail(stream, EPROTO, "parameter 'entropy' must be at most %d bytes", ENTROPY_MOST);
        return false;
    }
    restoration->entropy_size = bytes.size;
    memcpy(restoration->entropy, bytes.at, bytes.size);
    return true;
}

static bool take_machine_id(struct stream *stream, struct mp_value body, char **id) {
    if (!take_text(stream, body, "machine_id", false, id))
        return false;
    if (!*id || (strlen(*id) == MACHINE_ID_SIZE && strspn(*id, "0123456789abcdef") == MACHINE_ID_SIZE))
        return true;
    stream_fail(stream, EPROTO, "parameter 'machine_id' must be %d lower-case hexadecimal digits", MACHINE_ID_SIZE);
    return false;
}

void operation_restored(struct stream *stream, struct mp_value body) {
    struct agent *agent = stream_agent(stream);
    struct restoration restoration = {.is_vm = agent->is_vm, .hooks = true, .received = monotonic_seconds()};
    if (take_entropy(stream, body, &restoration) && take_int(stream, body, "realtime_ns", false, 0, INT64_MAX, &restoration.realtime_ns) &&
        take_machine_id(stream, body, &restoration.machine_id) && take_text(stream, body, "hostname", false, &restoration.hostname) &&
        take_flag(stream, body, "hooks", &restoration.hooks)) {
        freeze_wake_as_copy(agent, stream->connection);
        job_start(stream, false, work, &restoration);
    }
    free(restoration.hostname);
    free(restoration.machine_id);
}
