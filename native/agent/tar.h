/* Archives in the POSIX pax format (IEEE Std 1003.1-2001, "pax Interchange Format"; the header blocks are those of ustar). */
#ifndef AGENTENV_TAR_H
#define AGENTENV_TAR_H

#include "stream.h"

enum { TAR_BLOCK = 512 };

struct tar_header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100];
    char magic[6], version[2], user[32], group[32], device_major[8], device_minor[8], prefix[155], unused[12];
};

_Static_assert(sizeof(struct tar_header) == TAR_BLOCK, "a header is one block");

/* The sum that the header's `checksum` must hold: of all bytes, the checksum itself taken as blanks. */
unsigned tar_checksum(const struct tar_header *header);

void operation_tar_out(struct stream *stream, struct mp_value body);
void operation_tar_in(struct stream *stream, struct mp_value body);

#endif
