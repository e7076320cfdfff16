/* Users and groups as the sandbox's own /etc/passwd and /etc/group name them; no NSS, which a static program cannot load. */
#ifndef AGENTENV_USERS_H
#define AGENTENV_USERS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <time.h>

enum { GROUPS_MOST = 256, NAME_MOST = 256, HOME_MOST = 1024 };

struct user {
    uid_t uid;
    gid_t gid;
    char name[NAME_MOST];
    char home[HOME_MOST];
    char shell[HOME_MOST];
    gid_t groups[GROUPS_MOST];
    size_t group_count;
};

/* Looks up "name", "uid", "name:group" or "uid:gid". A uid that nobody has is taken as it is, with the same number as its group and "/" as its home.
 * False with errno ENOENT when there is no such name. */
bool user_find(const char *spec, struct user *user);

/* The last user that was looked up, as long as neither file has changed. */
struct user_memory {
    struct user user;
    char spec[NAME_MOST];
    struct file_version {
        dev_t device;
        ino_t inode;
        off_t size;
        struct timespec changed;
    } passwd, group;
};

/* The same as `user_find`; NULL with errno. */
const struct user *user_recall(struct user_memory *memory, const char *spec);

/* Names of ids, looked up once each while one listing or archive is made. */
struct names {
    char *passwd, *group; /* the files' contents */
    uid_t uid;
    gid_t gid;
    bool uid_known, gid_known;
    char user_name[NAME_MOST], group_name[NAME_MOST]; /* empty: none */
};

const char *names_user(struct names *names, uid_t uid);   /* NULL: none */
const char *names_group(struct names *names, gid_t gid);
void names_free(struct names *names);

#endif
