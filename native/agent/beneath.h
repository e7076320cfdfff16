/* Opening directories without ever leaving a root, whatever links lie in the way. */
#ifndef AGENTENV_BENEATH_H
#define AGENTENV_BENEATH_H

#include "users.h"

/* The directory `path` (relative, no "..") below `root`; an empty path is the root itself. -1 with errno; EXDEV or ELOOP: a link would lead outside. */
int beneath_open(int root, const char *path);

/* The same, with the directories made that are missing; they belong to `owner`. */
int beneath_directory(int root, const char *path, const struct user *owner);

#endif
