/* Pseudo-terminals. */
#ifndef AGENTENV_PTY_H
#define AGENTENV_PTY_H

#include <stdbool.h>

/* Opens a pair of the given size; the master does not block. False with errno. */
bool pty_open(int *master, int *slave, unsigned short rows, unsigned short columns);

#endif
