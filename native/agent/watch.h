/* The operation `watch`: inotify on a file, a directory or a tree. */
#ifndef AGENTENV_WATCH_H
#define AGENTENV_WATCH_H

#include "stream.h"

void operation_watch(struct stream *stream, struct mp_value body);

#endif
