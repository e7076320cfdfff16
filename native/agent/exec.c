#include "exec.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "operations.h"
#include "process.h"
#include "pty.h"
#include "spawn.h"

static const char DEFAULT_PATH[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
enum { LISTED_ARGUMENTS = 4096, TAG_MOST = 1024 };

/* One OPEN of `exec`, read and checked. */
struct plan {
    struct strings argv, env;
    char *cwd, *user_name, *tag;
    const struct user *user; /* the agent's memory: used up before anything else is looked up */
    bool wants_stdin, keep, terminal;
    int64_t rows, columns;
    double timeout, idle_timeout;
};

static void plan_free(struct plan *plan) {
    strings_free(&plan->argv);
    strings_free(&plan->env);
    free(plan->cwd);
    free(plan->user_name);
    free(plan->tag);
}

/* The stream's ends of a process's standard streams, and the process's own. */
struct ends {
    int in, out, err;                   /* ours; -1: none */
    int child_in, child_out, child_err; /* the child's; may be the same descriptor */
};

static bool bad(struct stream *stream, const char *what) {
    stream_fail(stream, EPROTO, "%s", what);
    return false;
}

static bool add_list(struct stream *stream, struct mp_value list, struct strings *strings) {
    struct mp_iterator items;
    struct mp_value item;
    struct mp_bytes text;
    if (!mp_iterate_array(list, &items))
        return bad(stream, "parameter 'argv' must be a list of strings");
    while (mp_next(&items, &item)) {
        if (!mp_bytes(item, &text) || memchr(text.at, '\0', text.size))
            return bad(stream, "parameter 'argv' must be a list of strings without NUL bytes");
        if (!strings_add(strings, (const char *)text.at, text.size)) {
            stream_fail(stream, ENOMEM, "argv");
            return false;
        }
    }
    return strings->count > 0 || bad(stream, "parameter 'argv' must not be empty");
}

static bool add_shell(struct stream *stream, struct mp_value body, struct plan *plan) {
    char *script;
    bool login = true;
    if (!take_flag(stream, body, "login", &login) || !take_text(stream, body, "shell", true, &script))
        return false;
    bool bash = access("/bin/bash", X_OK) == 0;
    const char *shell = bash ? "/bin/bash" : "/bin/sh";
    const char *option = bash && login ? "-lc" : "-c";
    bool added = strings_add(&plan->argv, shell, strlen(shell)) && strings_add(&plan->argv, option, strlen(option)) &&
                 strings_add(&plan->argv, script, strlen(script));
    free(script);
    if (!added)
        stream_fail(stream, ENOMEM, "shell");
    return added;
}

static bool take_command(struct stream *stream, struct mp_value body, struct plan *plan) {
    struct mp_value argv, shell;
    bool has_argv = mp_get(body, "argv", &argv), has_shell = mp_get(body, "shell", &shell);
    if (has_argv == has_shell)
        return bad(stream, "exec needs either 'argv' or 'shell'");
    return has_argv ? add_list(stream, argv, &plan->argv) : add_shell(stream, body, plan);
}

bool take_environment(struct stream *stream, struct mp_value body, struct strings *env) {
    struct mp_value map, item;
    struct mp_iterator items;
    struct mp_bytes name, value;
    if (!mp_get(body, "env", &map))
        return true;
    if (!mp_iterate_map(map, &items))
        return bad(stream, "parameter 'env' must be a map of strings");
    while (mp_next(&items, &item)) {
        bool name_ok = mp_bytes(item, &name) && name.size && !memchr(name.at, '\0', name.size) && !memchr(name.at, '=', name.size);
        if (!mp_next(&items, &item) || !name_ok || !mp_bytes(item, &value) || memchr(value.at, '\0', value.size))
            return bad(stream, "parameter 'env' must be a map of strings; names are not empty and hold no '='");
        if (!strings_set(env, (const char *)name.at, name.size, (const char *)value.at, value.size)) {
            stream_fail(stream, ENOMEM, "env");
            return false;
        }
    }
    return true;
}

static bool put(struct strings *env, const char *name, const char *value) { return strings_set(env, name, strlen(name), value, strlen(value)); }

static bool put_default(struct strings *env, const char *name, const char *value) { return strings_value(env, name) || put(env, name, value); }

/* The default environment, what follows from the user, then what the request says. */
static bool build_environment(struct stream *stream, struct mp_value body, struct plan *plan) {
    struct strings *env = &plan->env;
    bool (*set)(struct strings *, const char *, const char *) = plan->user_name ? put : put_default;
    bool made = strings_copy(env, &stream_agent(stream)->env) && put_default(env, "PATH", DEFAULT_PATH) && set(env, "HOME", plan->user->home) &&
                set(env, "USER", plan->user->name) && set(env, "LOGNAME", plan->user->name) &&
                /* Without SHELL each bash would ask the user database for it, which takes longer than all else that it does at its start. */
                set(env, "SHELL", plan->user->shell) &&
                (!plan->terminal || put_default(env, "TERM", "xterm-256color"));
    if (!made) {
        stream_fail(stream, ENOMEM, "env");
        return false;
    }
    return take_environment(stream, body, env);
}

static bool take_terminal(struct stream *stream, struct mp_value body, struct plan *plan) {
    struct mp_value pty;
    plan->rows = 24;
    plan->columns = 80;
    plan->terminal = mp_get(body, "pty", &pty);
    if (!plan->terminal)
        return true;
    if (mp_type(pty) != MP_MAP)
        return bad(stream, "parameter 'pty' must be a map with 'rows' and 'cols'");
    return take_int(stream, pty, "rows", false, 1, USHRT_MAX, &plan->rows) && take_int(stream, pty, "cols", false, 1, USHRT_MAX, &plan->columns);
}

/* Where a command begins that does not say where. The machine's directory may be closed to all but its user and root, so that others begin at
 * home. */
static const char *default_cwd(const struct agent *agent, const struct plan *plan) {
    const struct user *user = plan->user;
    struct stat status;
    if (user->uid == 0 || !plan->user_name || (agent->user && strcmp(plan->user_name, agent->user) == 0))
        return agent->cwd ? agent->cwd : "/";
    return stat(user->home, &status) == 0 && S_ISDIR(status.st_mode) ? user->home : "/";
}

static bool take_identity(struct stream *stream, struct mp_value body, struct plan *plan) {
    struct agent *agent = stream_agent(stream);
    if (!take_user(stream, body, "user", &plan->user_name) || !take_text(stream, body, "cwd", false, &plan->cwd))
        return false;
    const char *name = plan->user_name ? plan->user_name : agent->user ? agent->user : "0";
    plan->user = user_recall(&agent->users, name);
    if (!plan->user) {
        stream_fail(stream, errno, "user '%.64s'", name);
        return false;
    }
    if (!plan->cwd)
        plan->cwd = strdup(default_cwd(agent, plan));
    return plan->cwd != NULL || bad(stream, "out of memory");
}

static bool take_tag(struct stream *stream, struct mp_value body, struct plan *plan) {
    if (!take_text(stream, body, "tag", false, &plan->tag))
        return false;
    return !plan->tag || strlen(plan->tag) <= TAG_MOST || bad(stream, "parameter 'tag' must be at most 1024 bytes");
}

static bool take_plan(struct stream *stream, struct mp_value body, struct plan *plan) {
    return take_command(stream, body, plan) && take_terminal(stream, body, plan) && take_identity(stream, body, plan) &&
           take_flag(stream, body, "stdin", &plan->wants_stdin) && take_flag(stream, body, "keep", &plan->keep) &&
           take_tag(stream, body, plan) && take_seconds(stream, body, "timeout", &plan->timeout) &&
           take_seconds(stream, body, "idle_timeout", &plan->idle_timeout) && build_environment(stream, body, plan);
}

static void close_end(int *end) {
    if (*end >= 0)
        close(*end);
    *end = -1;
}

static void close_all(struct ends *ends) {
    close_end(&ends->in);
    close_end(&ends->out);
    close_end(&ends->err);
}

static void close_childs(struct ends *ends) {
    bool shared = ends->child_in == ends->child_out;
    close_end(&ends->child_in);
    if (shared)
        return;
    close_end(&ends->child_out);
    close_end(&ends->child_err);
}

static bool open_terminal(const struct plan *plan, struct ends *ends) {
    int slave;
    if (!pty_open(&ends->out, &slave, (unsigned short)plan->rows, (unsigned short)plan->columns))
        return false;
    ends->child_in = ends->child_out = ends->child_err = slave;
    /* epoll knows a descriptor once, and reading and writing are watched apart. */
    ends->in = fcntl(ends->out, F_DUPFD_CLOEXEC, 3);
    return ends->in >= 0;
}

static bool open_pipes(const struct plan *plan, struct ends *ends) {
    int in[2] = {-1, -1}, out[2], err[2];
    if (plan->wants_stdin ? !make_pipe(in, 1) : (in[0] = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0)
        return false;
    ends->child_in = in[0];
    ends->in = in[1];
    if (!make_pipe(out, 0))
        return false;
    ends->out = out[0];
    ends->child_out = out[1];
    if (!make_pipe(err, 0))
        return false;
    ends->err = err[0];
    ends->child_err = err[1];
    return true;
}

/* What a listing shows of the command: whole arguments up to a bound, so that a thousand long ones still fit in one frame. */
static void keep_argv(const struct plan *plan, struct strings *listed) {
    size_t room = LISTED_ARGUMENTS;
    for (size_t i = 0; i < plan->argv.count; i++) {
        size_t size = strlen(plan->argv.items[i]);
        if (size > room) {
            strings_add(listed, "...", 3);
            return;
        }
        strings_add(listed, plan->argv.items[i], size);
        room -= size;
    }
}

static double unix_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Makes the entry in the table; what it needs of the plan moves over. */
static void adopt(struct stream *stream, struct process *process, struct plan *plan, struct ends *ends, pid_t pid) {
    struct agent *agent = stream_agent(stream);
    *process = (struct process){
        .agent = agent, .stream = stream, .pid = pid, .keep = plan->keep, .terminal = plan->terminal, .cwd = plan->cwd, .tag = plan->tag,
        .oom_kills = process->oom_kills};
    process->user = strdup(plan->user->name);
    process->started_at = unix_seconds();
    process->started = monotonic_seconds();
    plan->cwd = plan->tag = NULL;
    keep_argv(plan, &process->argv);
    struct history *history = plan->keep ? &process->history : NULL;
    process->out = (struct outlet){.source = {.fd = -1}, .agent = agent, .stream = stream, .kind = FRAME_DATA, .history = history};
    process->err = (struct outlet){.source = {.fd = -1}, .agent = agent, .stream = stream, .kind = FRAME_DATA_ERR, .history = history};
    process->in = (struct inlet){.source = {.fd = -1}, .agent = agent, .stream = stream};
    stream->handler = &PROCESS_HANDLER;
    stream->state = process;
    process_add(process);
    if (ends->in >= 0)
        inlet_open(&process->in, agent, ends->in);
    /* Both before either is watched: what ends first must find the other open. */
    process->out.source.fd = ends->out;
    process->err.source.fd = ends->err;
    process_limit_time(process, plan->timeout, plan->idle_timeout);
    if (ends->err >= 0)
        outlet_open(&process->err, agent, ends->err);
    outlet_open(&process->out, agent, ends->out);
}

void tell_started(struct stream *stream, pid_t pid) {
    size_t mark;
    struct buffer *out = stream_event(stream, "started", 1, &mark);
    mp_write_str(out, "pid");
    mp_write_int(out, pid);
    stream_commit(stream, mark);
}

static void run_plan(struct stream *stream, struct plan *plan) {
    struct ends ends = {-1, -1, -1, -1, -1, -1};
    struct process *process = calloc(1, sizeof *process);
    if (!process || !(plan->terminal ? open_terminal(plan, &ends) : open_pipes(plan, &ends))) {
        int problem = errno;
        close_childs(&ends);
        close_all(&ends);
        free(process);
        stream_fail(stream, problem, "cannot make the standard streams");
        return;
    }
    struct spawn_request request = {
        .argv = plan->argv.items, .envp = plan->env.items, .path = strings_value(&plan->env, "PATH"), .cwd = plan->cwd, .user = plan->user,
        .in = ends.child_in, .out = ends.child_out, .err = ends.child_err, .terminal = plan->terminal};
    struct spawn_failure failure;
    limits_refresh(stream_agent(stream));
    process->oom_kills = limits_oom_kills(&stream_agent(stream)->limits);
    pid_t pid = spawn(stream_agent(stream), &request, &failure);
    close_childs(&ends);
    if (pid < 0) {
        close_all(&ends);
        free(process);
        bool about_cwd = strstr(failure.step, "directory") != NULL;
        stream_fail(stream, failure.number, "%s '%.200s'", failure.step, about_cwd ? plan->cwd : plan->argv.items[0]);
        return;
    }
    tell_started(stream, pid);
    adopt(stream, process, plan, &ends, pid);
}

void operation_exec(struct stream *stream, struct mp_value body) {
    struct plan plan = {0};
    if (take_plan(stream, body, &plan))
        run_plan(stream, &plan);
    plan_free(&plan);
}
