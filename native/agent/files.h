/* The operations on files. */
#ifndef AGENTENV_FILES_H
#define AGENTENV_FILES_H

#include <sys/stat.h>

#include "stream.h"
#include "users.h"

void operation_read(struct stream *stream, struct mp_value body);
void operation_write(struct stream *stream, struct mp_value body);
void operation_stat(struct stream *stream, struct mp_value body);
void operation_list(struct stream *stream, struct mp_value body);
void operation_mkdir(struct stream *stream, struct mp_value body);
void operation_rename(struct stream *stream, struct mp_value body);
void operation_remove(struct stream *stream, struct mp_value body);
void operation_chmod(struct stream *stream, struct mp_value body);
void operation_chown(struct stream *stream, struct mp_value body);
void operation_symlink(struct stream *stream, struct mp_value body);
void operation_attributes(struct stream *stream, struct mp_value body);

/* Writes the map that describes one file; `path` is how the host names it. With a prefix, its extended attributes of such names are told, too. */
void entry_write(struct buffer *out, const char *path, const struct stat *info, const char *target, struct names *names, const char *prefix, bool follow);

/* The beginning of names of extended attributes, such as "user.x."; NULL: absent. Answers ERROR and returns false for any other. To be freed. */
bool take_attributes(struct stream *stream, struct mp_value body, const char *key, bool needed, char **prefix);

/* Writes a map of the extended attributes of a file whose names begin with the prefix, which is left out of them: those of printable ASCII. */
void attributes_write(struct buffer *out, const char *path, bool follow, const char *prefix);

/* The user who shall own what is made: the parameter `user`, else the agent's default. Answers ERROR and returns false when there is none of that name. */
bool take_owner(struct stream *stream, struct mp_value body, struct user *owner);

/* Makes the directory and, where `parents`, those above it; what is new belongs to `owner`. 1: made, 0: was there, -1: errno. */
int make_directory(const char *path, mode_t mode, bool parents, const struct user *owner);

/* Makes the directories above `path`. */
int make_parents(const char *path, const struct user *owner);

#endif
