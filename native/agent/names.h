/* The machine's name in its own files. */
#ifndef AGENTENV_NAMES_H
#define AGENTENV_NAMES_H

#include <stddef.h>

/* What /etc/hostname says; empty where it says nothing. */
void names_read(char *name, size_t size);

/* Puts the name `to` in the place of `from` in /etc/hostname and /etc/hosts, wherever that stands there as a word of its own; the rest stays.
 * What cannot be read or written stays as it is. */
void names_replace(const char *from, const char *to);

#endif
