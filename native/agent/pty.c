#include "pty.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Not every libc's headers know it. */
#ifndef TIOCGPTPEER
#define TIOCGPTPEER 0x5441
#endif

static int open_slave(int master) {
    /* By the master itself where the kernel can (4.13): the name in /dev/pts may mean another mount's terminal. */
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave >= 0)
        return slave;
    int number;
    char path[32];
    if (ioctl(master, TIOCGPTN, &number) != 0)
        return -1;
    snprintf(path, sizeof path, "/dev/pts/%d", number);
    return open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
}

bool pty_open(int *master, int *slave, unsigned short rows, unsigned short columns) {
    int unlocked = 0;
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    *master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (*master < 0)
        return false;
    *slave = ioctl(*master, TIOCSPTLCK, &unlocked) == 0 ? open_slave(*master) : -1;
    if (*slave >= 0 && ioctl(*master, TIOCSWINSZ, &size) == 0)
        return true;
    int problem = errno;
    if (*slave >= 0)
        close(*slave);
    close(*master);
    errno = problem;
    return false;
}
