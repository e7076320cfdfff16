#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vm.h"

enum { LINE_MOST = 4096 }; /* COMMAND_LINE_SIZE of every architecture is less */
static const char PREFIX[] = "agentenv.";

static char *place_of(struct vm_settings *settings, const char *name, size_t size) {
    const struct {
        const char *name;
        char *place;
    } places[] = {{"transport", settings->transport}, {"upper", settings->upper}, {"hostname", settings->hostname},    {"ip", settings->ip},
                  {"dns", settings->dns},             {"pids", settings->pids},   {"machine_id", settings->machine_id}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (strlen(places[i].name) == size && memcmp(places[i].name, name, size) == 0)
            return places[i].place;
    return NULL;
}

static void take(struct vm_settings *settings, const char *word) {
    const char *equals = strchr(word, '=');
    if (strncmp(word, PREFIX, sizeof PREFIX - 1) != 0)
        return;
    const char *name = word + sizeof PREFIX - 1;
    char *place = equals ? place_of(settings, name, (size_t)(equals - name)) : NULL;
    if (!place)
        vm_fail(0, "the kernel's command line has an unknown parameter '%s'", word);
    if (strlen(equals + 1) >= VM_WORD)
        vm_fail(0, "the kernel's command line has a parameter that is too long: '%.40s…'", word);
    strcpy(place, equals + 1);
}

void vm_read_settings(struct vm_settings *settings) {
    char line[LINE_MOST] = "";
    int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, line, sizeof line - 1) < 0)
        vm_fail(errno, "cannot read the kernel's command line");
    close(fd);
    *settings = (struct vm_settings){.transport = "", .upper = "disk"};
    for (char *rest = line, *word; (word = strsep(&rest, " \n"));)
        take(settings, word);
    if (!*settings->transport)
        vm_fail(0, "the kernel's command line lacks agentenv.transport");
}
