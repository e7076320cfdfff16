/*
 * The records of a request, each `key=value` ended by a NUL byte:
 *
 *   op=launch|affinity|kill|close   id=NAME
 *   hostname=NAME   netns=PATH (else a fresh one)   into=DIRECTORY (a version 2 cgroup)
 *   enter=PATH (the `tasks` of a version 1 cgroup, repeated)   memory_file=PATH (what the agent reads its use from)
 *   oom_file=PATH (and the number of kills for want of memory)
 *   tree=TARGET, then upper=PATH work=PATH and lower=PATH (repeated, topmost first) of that overlay; "/" comes first
 *   cpus=N   show_memory=1   tmp=BYTES shm=BYTES run=BYTES   arg=TEXT (of the agent, repeated)
 */
#include "launch.h"

#include <string.h>

struct field {
    const char *key;
    size_t offset;
};

static const struct field texts[] = {
    {"op", offsetof(struct request, operation)},       {"id", offsetof(struct request, id)},
    {"hostname", offsetof(struct request, hostname)},  {"netns", offsetof(struct request, netns)},
    {"memory_file", offsetof(struct request, memory_file)}, {"into", offsetof(struct request, into)},
    {"oom_file", offsetof(struct request, oom_file)},
};

static const struct field sizes[] = {
    {"tmp", offsetof(struct request, tmp_bytes)},
    {"shm", offsetof(struct request, shm_bytes)},
    {"run", offsetof(struct request, run_bytes)},
};

static const char *tree_record(struct request *request, const char *key, const char *value) {
    if (strcmp(key, "tree") == 0) {
        if (request->tree_count == TREES_MAX) return "too many trees";
        if (value[0] != '/') return "a tree's target is not absolute";
        struct tree *tree = &request->trees[request->tree_count++];
        tree->target = value;
        tree->lowers = request->lowers + request->lower_count;
        return NULL;
    }
    if (request->tree_count == 0) return "upper, work or lower before its tree";
    if (value[0] != '/') return "a tree's directory is not absolute";
    struct tree *tree = &request->trees[request->tree_count - 1];
    if (strcmp(key, "upper") == 0) tree->upper = value;
    else if (strcmp(key, "work") == 0) tree->work = value;
    else {
        if (request->lower_count == LOWERS_MAX) return "too many lower directories";
        request->lowers[request->lower_count++] = value;
        tree->lower_count++;
    }
    return NULL;
}

static const char *list_record(const char **list, size_t *count, size_t limit, const char *value) {
    if (*count == limit) return "too many cgroups or arguments";
    list[(*count)++] = value;
    return NULL;
}

static const char *record(struct request *request, const char *key, const char *value) {
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (strcmp(key, texts[i].key) != 0) continue;
        *(const char **)((char *)request + texts[i].offset) = value;
        return NULL;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(key, sizes[i].key) == 0)
            return read_number(value, (uint64_t *)(void *)((char *)request + sizes[i].offset)) ? NULL : "a size is no number";
    if (strcmp(key, "tree") == 0 || strcmp(key, "upper") == 0 || strcmp(key, "work") == 0 || strcmp(key, "lower") == 0)
        return tree_record(request, key, value);
    if (strcmp(key, "enter") == 0) return list_record(request->groups, &request->group_count, GROUPS_MAX, value);
    if (strcmp(key, "arg") == 0) return list_record(request->arguments, &request->argument_count, ARGUMENTS_MAX, value);
    if (strcmp(key, "show_memory") == 0) {
        request->show_memory = strcmp(value, "1") == 0;
        return NULL;
    }
    if (strcmp(key, "cpus") == 0) {
        uint64_t count;
        if (!read_number(value, &count) || count > CPUS_MAX) return "cpus is no number of cores";
        request->cpus = (unsigned)count;
        return NULL;
    }
    return "unknown record";
}

static const char *complete(const struct request *request) {
    if (request->operation == NULL || request->id == NULL) return "no op or no id";
    if (strcmp(request->operation, "launch") != 0) return NULL;
    if (request->tree_count == 0 || strcmp(request->trees[0].target, "/") != 0) return "the first tree is not /";
    for (size_t i = 0; i < request->tree_count; i++) {
        const struct tree *tree = &request->trees[i];
        if (tree->upper == NULL || tree->work == NULL || tree->lower_count == 0) return "a tree without upper, work or lower";
    }
    return request->argument_count > 0 ? NULL : "no arguments for the agent";
}

const char *parse_request(char *message, size_t size, struct request *request) {
    memset(request, 0, sizeof *request);
    request->listen = request->log = -1;
    if (size == 0 || message[size - 1] != '\0') return "the message does not end a record";
    for (char *next = message; next < message + size; next += strlen(next) + 1) {
        char *equals = strchr(next, '=');
        if (equals == NULL) return "a record without =";
        *equals = '\0';
        char *value = equals + 1;
        const char *problem = record(request, next, value);
        if (problem != NULL) return problem;
        next = value;
    }
    return complete(request);
}
