/*
 * System calls and constants that C libraries do not offer yet, or some under the same name: hence `sys_`.
 *
 * All numbers above 424 are the same on every architecture. Names and values are those of the kernel's uapi headers.
 */
#ifndef AGENTENV_KERNEL_H
#define AGENTENV_KERNEL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum {
    NR_PIDFD_SEND_SIGNAL = 424,
    NR_OPEN_TREE = 428,
    NR_MOVE_MOUNT = 429,
    NR_FSOPEN = 430,
    NR_FSCONFIG = 431,
    NR_FSMOUNT = 432,
    NR_PIDFD_OPEN = 434,
    NR_CLONE3 = 435,
    NR_CLOSE_RANGE = 436,
    NR_MOUNT_SETATTR = 442,
    NR_LANDLOCK_CREATE_RULESET = 444,
    NR_LANDLOCK_RESTRICT_SELF = 446,
};

#define OPEN_TREE_CLONE_FLAG 1u
#define OPEN_TREE_CLOEXEC_FLAG 02000000u
#define EMPTY_PATH_AT 0x1000u
#define MOVE_MOUNT_F_EMPTY 4u
#define MOVE_MOUNT_T_LINKS 0x10u

#define FSCONFIG_FLAG 0u
#define FSCONFIG_STRING 1u
#define FSCONFIG_CREATE 6u
#define FS_CLOEXEC 1u

#define ATTR_RDONLY 0x1u
#define ATTR_NOSUID 0x2u
#define ATTR_NODEV 0x4u
#define ATTR_NOEXEC 0x8u

#define NS_NEWNS 0x00020000u
#define NS_NEWCGROUP 0x02000000u
#define NS_NEWUTS 0x04000000u
#define NS_NEWIPC 0x08000000u
#define NS_NEWUSER 0x10000000u
#define NS_NEWPID 0x20000000u
#define NS_NEWNET 0x40000000u
#define CLONE_GIVE_PIDFD 0x00001000ull
#define CLONE_ENTER_CGROUP 0x200000000ull

#define CLOSE_RANGE_CLOEXEC_FLAG 4u
#define PIDFD_TYPE 3 /* P_PIDFD of waitid */

struct clone_arguments { /* struct clone_args, up to its `cgroup` */
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

struct mount_attributes { /* struct mount_attr */
    uint64_t attr_set, attr_clr, propagation, userns_fd;
};

struct landlock_rules { /* struct landlock_ruleset_attr as of ABI 6 */
    uint64_t handled_access_fs, handled_access_net, scoped;
};

static inline int sys_open_tree(int directory, const char *path, unsigned flags) {
    return (int)syscall(NR_OPEN_TREE, directory, path, flags);
}

static inline int sys_move_mount(int from, const char *from_path, int to, const char *to_path, unsigned flags) {
    return (int)syscall(NR_MOVE_MOUNT, from, from_path, to, to_path, flags);
}

static inline int sys_fsopen(const char *type) {
    return (int)syscall(NR_FSOPEN, type, FS_CLOEXEC);
}

static inline int sys_fsconfig(int context, unsigned command, const char *key, const void *value) {
    return (int)syscall(NR_FSCONFIG, context, command, key, value, 0);
}

static inline int sys_fsmount(int context, unsigned attributes) {
    return (int)syscall(NR_FSMOUNT, context, FS_CLOEXEC, attributes);
}

static inline int sys_mount_setattr(int directory, const char *path, unsigned flags, struct mount_attributes *attributes) {
    return (int)syscall(NR_MOUNT_SETATTR, directory, path, flags, attributes, sizeof *attributes);
}

static inline int close_range_on_exec(unsigned first) {
    return (int)syscall(NR_CLOSE_RANGE, first, ~0u, CLOSE_RANGE_CLOEXEC_FLAG);
}

static inline int pidfd_open(pid_t pid) {
    return (int)syscall(NR_PIDFD_OPEN, pid, 0);
}

static inline int pidfd_send_signal(int pidfd, int number) {
    return (int)syscall(NR_PIDFD_SEND_SIGNAL, pidfd, number, NULL, 0);
}

#endif
