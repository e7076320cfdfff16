/* The agent as the first program of a virtual machine: from the kernel's last step to a machine in which the agent can serve. */
#ifndef AGENTENV_VM_H
#define AGENTENV_VM_H

#include "agent.h"
#include "options.h"

enum { VM_WORD = 256, VM_AGENT_PORT = 1024 };

/* What the kernel's command line says; see docs/vm-guest.md. Empty text: not given. */
struct vm_settings {
    char transport[VM_WORD], upper[VM_WORD], hostname[VM_WORD], ip[VM_WORD], dns[VM_WORD], pids[VM_WORD], machine_id[VM_WORD];
};

/* Whether this process is the first one of a virtual machine. */
bool vm_is_init(int count, char **arguments);

/* Does everything up to serving; fills the options with where the host is listened for. A failure ends the machine. */
void vm_boot(struct agent *agent, struct options *options);

/* Opens what is listened on besides options->listener; call when the loop is there. False with errno. */
bool vm_serve(struct agent *agent);

/* Writes the disk and resets the machine. */
_Noreturn void vm_end(void);

/* One sentence on the console (with the errno's words unless `number` is 0), and the end of the machine. */
_Noreturn void vm_fail(int number, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* --- the steps, each in its file --- */

void vm_read_settings(struct vm_settings *settings);

/* Waits for the kernel to announce a device, at most until `deadline` (monotonic). False when that has passed. */
bool vm_await_device(int uevents, double deadline);

/* Loads everything in /modules in the order of the names; then what is in /later, while the machine already goes on. */
void vm_load_modules(void);

/* Finds the disks and makes the overlay of them the root. Returns a descriptor of the upper's file system; `fresh` when the upper was empty. */
int vm_mount_root(const struct vm_settings *settings, int uevents, bool *fresh);

/* The file systems that every Linux has besides its root. */
void vm_mount_kernel_files(void);

/* The cgroup that bounds the number of processes. */
void vm_limit_processes(const char *most);

void vm_set_up_network(const struct vm_settings *settings, int uevents);

/* The names and numbers by which this machine is told from others. */
void vm_write_identity(const struct vm_settings *settings, bool fresh);

/* Makes the directories of an absolute path and then the file, with this content instead of what was there. False with errno. */
bool vm_write_file(const char *path, mode_t mode, const char *content);

#endif
