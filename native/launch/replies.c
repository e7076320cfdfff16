/* What the daemon tells its owner: one message of NUL-ended `key=value` records, written here with newlines between them. */
#include "daemon.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

void tell(struct daemon *daemon, int descriptor, const char *format, ...) {
    char text[2048];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (length < 0) return;
    if ((size_t)length >= sizeof text) length = sizeof text - 1;
    for (int i = 0; i < length; i++)
        if (text[i] == '\n') text[i] = '\0';
    struct iovec content = {.iov_base = text, .iov_len = (size_t)length + 1};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } space = {0};
    struct msghdr message = {.msg_iov = &content, .msg_iovlen = 1};
    if (descriptor >= 0) {
        message.msg_control = space.bytes;
        message.msg_controllen = sizeof space.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    }
    while (sendmsg(daemon->control, &message, MSG_NOSIGNAL) < 0) {
        if (errno == EINTR) continue;
        daemon->deserted = true;
        return;
    }
}
