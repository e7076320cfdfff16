/* The symbolic name of an errno value ("ENOENT"), which the protocol uses since the numbers differ between machines. */
#ifndef AGENTENV_ERRNO_NAME_H
#define AGENTENV_ERRNO_NAME_H

const char *errno_name(int number);

#endif
