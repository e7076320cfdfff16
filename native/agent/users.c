#include "users.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_SHELL "/bin/sh" /* passwd(5): what an empty field means */

enum { FILE_MOST = 4 << 20, FIELDS = 7 };

/* The content of a small text file, NUL-terminated; an empty string when it cannot be read. To be freed. */
static char *slurp(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    size_t used = 0, capacity = 4096;
    char *text = malloc(capacity);
    while (fd >= 0 && text && used < FILE_MOST) {
        ssize_t size = read(fd, text + used, capacity - used - 1);
        if (size <= 0)
            break;
        used += (size_t)size;
        if (used + 1 == capacity) {
            char *larger = realloc(text, capacity *= 2);
            if (!larger)
                free(text);
            text = larger;
        }
    }
    if (fd >= 0)
        close(fd);
    if (text)
        text[used] = '\0';
    return text;
}

/* One line "a:b:c…" cut into fields that point into it; returns how many. */
static size_t split(char *line, char *fields[FIELDS]) {
    size_t count = 0;
    while (count < FIELDS) {
        fields[count++] = line;
        line = strchr(line, ':');
        if (!line)
            break;
        *line++ = '\0';
    }
    return count;
}

static bool number(const char *text, uint32_t *value) {
    char *end;
    errno = 0;
    unsigned long long wide = strtoull(text, &end, 10);
    *value = (uint32_t)wide;
    return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0 && wide < UINT32_MAX;
}

static void copy(char *to, size_t size, const char *from) { snprintf(to, size, "%s", from); }

/* Copies the next line of `text` into `line`; false at the end. Lines that do not fit are skipped. */
static bool next_line(const char **text, char *line, size_t room) {
    while (**text) {
        const char *start = *text;
        size_t size = strcspn(start, "\n");
        *text = start + size + (start[size] == '\n');
        if (size < room) {
            memcpy(line, start, size);
            line[size] = '\0';
            return true;
        }
    }
    return false;
}

static bool find_account(const char *passwd, const char *name, struct user *user) {
    char line[4096], *fields[FIELDS];
    uint32_t wanted = 0, uid, gid;
    bool by_number = number(name, &wanted);
    for (int pass = 0; pass < 2; pass++) { /* a name of digits is a name first */
        for (const char *text = passwd; next_line(&text, line, sizeof line);) {
            size_t count = split(line, fields);
            if (count < 6 || !number(fields[2], &uid) || !number(fields[3], &gid))
                continue;
            if (pass == 0 ? strcmp(fields[0], name) != 0 : uid != wanted)
                continue;
            user->uid = uid;
            user->gid = gid;
            copy(user->name, sizeof user->name, fields[0]);
            copy(user->home, sizeof user->home, fields[5]);
            copy(user->shell, sizeof user->shell, count > 6 && *fields[6] ? fields[6] : DEFAULT_SHELL);
            return true;
        }
        if (!by_number)
            break;
    }
    if (!by_number) {
        /* An image without any /etc/passwd has a root all the same. */
        if (strcmp(name, "root") != 0)
            return false;
        *user = (struct user){.name = "root", .home = "/root", .shell = DEFAULT_SHELL};
        return true;
    }
    user->uid = wanted;
    user->gid = wanted;
    copy(user->name, sizeof user->name, wanted == 0 ? "root" : name);
    copy(user->home, sizeof user->home, wanted == 0 ? "/root" : "/");
    copy(user->shell, sizeof user->shell, DEFAULT_SHELL);
    return true;
}

static bool lists_member(char *members, const char *name) {
    char *rest = NULL;
    for (char *member = strtok_r(members, ",", &rest); member; member = strtok_r(NULL, ",", &rest))
        if (strcmp(member, name) == 0)
            return true;
    return false;
}

static void find_groups(const char *group, struct user *user) {
    char line[8192], *fields[FIELDS];
    uint32_t gid;
    user->groups[0] = user->gid;
    user->group_count = 1;
    for (const char *text = group; next_line(&text, line, sizeof line) && user->group_count < GROUPS_MOST;) {
        if (split(line, fields) < 4 || !number(fields[2], &gid) || gid == user->gid)
            continue;
        if (lists_member(fields[3], user->name))
            user->groups[user->group_count++] = gid;
    }
}

static bool find_group(const char *group, const char *name, gid_t *found) {
    char line[8192], *fields[FIELDS];
    uint32_t gid;
    for (const char *text = group; next_line(&text, line, sizeof line);) {
        if (split(line, fields) >= 3 && strcmp(fields[0], name) == 0 && number(fields[2], &gid)) {
            *found = gid;
            return true;
        }
    }
    if (!number(name, &gid))
        return false;
    *found = gid;
    return true;
}

bool user_find(const char *spec, struct user *user) {
    char name[NAME_MOST];
    const char *colon = strchr(spec, ':');
    size_t size = colon ? (size_t)(colon - spec) : strlen(spec);
    if (size == 0 || size >= sizeof name) {
        errno = ENOENT;
        return false;
    }
    memcpy(name, spec, size);
    name[size] = '\0';
    memset(user, 0, sizeof *user);
    char *passwd = slurp("/etc/passwd");
    char *group = slurp("/etc/group");
    bool found = passwd && group && find_account(passwd, name, user);
    if (found && colon)
        found = find_group(group, colon + 1, &user->gid);
    if (found)
        find_groups(group, user);
    free(passwd);
    free(group);
    if (!found)
        errno = ENOENT;
    return found;
}

static struct file_version version_of(const char *path) {
    struct stat info;
    struct file_version version;
    memset(&version, 0, sizeof version); /* the padding too: versions are compared as bytes */
    if (stat(path, &info) == 0) {
        version.device = info.st_dev;
        version.inode = info.st_ino;
        version.size = info.st_size;
        version.changed = info.st_ctim;
    }
    return version;
}

const struct user *user_recall(struct user_memory *memory, const char *spec) {
    struct file_version passwd = version_of("/etc/passwd"), group = version_of("/etc/group");
    if (*spec && strcmp(memory->spec, spec) == 0 && memcmp(&memory->passwd, &passwd, sizeof passwd) == 0 && memcmp(&memory->group, &group, sizeof group) == 0)
        return &memory->user;
    memory->spec[0] = '\0';
    if (!user_find(spec, &memory->user))
        return NULL;
    copy(memory->spec, sizeof memory->spec, strlen(spec) < sizeof memory->spec ? spec : "");
    memory->passwd = passwd;
    memory->group = group;
    return &memory->user;
}

/* The name in the first field of the line whose third is `id`. */
static void find_name(const char *text, uint32_t id, char *name, size_t room) {
    char line[8192], *fields[FIELDS];
    uint32_t value;
    name[0] = '\0';
    while (text && next_line(&text, line, sizeof line)) {
        if (split(line, fields) >= 3 && number(fields[2], &value) && value == id) {
            copy(name, room, fields[0]);
            return;
        }
    }
}

const char *names_user(struct names *names, uid_t uid) {
    if (!names->uid_known || names->uid != uid) {
        if (!names->passwd)
            names->passwd = slurp("/etc/passwd");
        find_name(names->passwd, uid, names->user_name, sizeof names->user_name);
        names->uid = uid;
        names->uid_known = true;
    }
    return *names->user_name ? names->user_name : NULL;
}

const char *names_group(struct names *names, gid_t gid) {
    if (!names->gid_known || names->gid != gid) {
        if (!names->group)
            names->group = slurp("/etc/group");
        find_name(names->group, gid, names->group_name, sizeof names->group_name);
        names->gid = gid;
        names->gid_known = true;
    }
    return *names->group_name ? names->group_name : NULL;
}

void names_free(struct names *names) {
    free(names->passwd);
    free(names->group);
}
