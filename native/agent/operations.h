/* The operations that a host can open, and the reading of their parameters. */
#ifndef AGENTENV_OPERATIONS_H
#define AGENTENV_OPERATIONS_H

#include "stream.h"

/* Starts the operation that the OPEN body names; answers ERROR when there is none. */
void operation_start(struct stream *stream, struct mp_value body);

/* Parameters. Each of these answers the stream with ERROR and returns false when the parameter is there but has the wrong type
 * (or, for the needed ones, is missing): the caller then returns at once, since the stream is gone. */
bool take_text(struct stream *stream, struct mp_value body, const char *key, bool needed, char **text); /* to be freed; NULL: absent */
bool take_path(struct stream *stream, struct mp_value body, const char *key, char **path);              /* needed, not empty */
bool take_flag(struct stream *stream, struct mp_value body, const char *key, bool *flag);               /* absent: unchanged */
bool take_int(struct stream *stream, struct mp_value body, const char *key, bool needed, int64_t least, int64_t most, int64_t *number);
bool take_seconds(struct stream *stream, struct mp_value body, const char *key, double *seconds);       /* absent: unchanged */
bool take_user(struct stream *stream, struct mp_value body, const char *key, char **user);              /* a name or a uid as text */

#endif
