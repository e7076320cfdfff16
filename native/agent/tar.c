#include "tar.h"

unsigned tar_checksum(const struct tar_header *header) {
    const unsigned char *bytes = (const unsigned char *)header;
    unsigned sum = 0;
    for (unsigned i = 0; i < TAR_BLOCK; i++)
        sum += i >= offsetof(struct tar_header, checksum) && i < offsetof(struct tar_header, type) ? ' ' : bytes[i];
    return sum;
}
