"""Which system calls a sandbox of the namespace backend may make: the policy as data (docs/isolation.md explains it).

Everything that is in no list answers ENOSYS, so that a C library falls back from calls that are newer than this list; what is named in
`REFUSED` exists, is known, and answers EPERM.
"""

from __future__ import annotations

_ALLOWED = """
read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn pread64 pwrite64 readv
writev access pipe select sched_yield mremap msync mincore madvise shmget shmat shmctl dup dup2 pause nanosleep getitimer alarm setitimer
getpid sendfile connect accept sendto recvfrom sendmsg recvmsg shutdown bind listen getsockname getpeername socketpair
setsockopt getsockopt fork vfork execve exit wait4 kill uname semget semop semctl shmdt msgget msgsnd msgrcv msgctl fcntl flock fsync
fdatasync truncate ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat link unlink symlink readlink chmod fchmod chown fchown
lchown umask gettimeofday getrlimit getrusage sysinfo times ptrace getuid getgid setuid setgid geteuid getegid setpgid getppid getpgrp
setsid setreuid setregid getgroups setgroups setresuid getresuid setresgid getresgid getpgid setfsuid setfsgid getsid capget capset
rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime mknod statfs fstatfs getpriority setpriority
sched_setparam sched_getparam sched_setscheduler sched_getscheduler sched_get_priority_max sched_get_priority_min sched_rr_get_interval
mlock munlock mlockall munlockall prctl arch_prctl setrlimit chroot sync gettid readahead setxattr lsetxattr fsetxattr getxattr lgetxattr
fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr tkill time futex ioctl sched_getaffinity
io_setup io_destroy io_getevents io_submit io_cancel epoll_create remap_file_pages getdents64 set_tid_address restart_syscall semtimedop
fadvise64 timer_create timer_settime timer_gettime timer_getoverrun timer_delete clock_gettime clock_getres clock_nanosleep exit_group
epoll_wait epoll_ctl tgkill utimes mbind set_mempolicy get_mempolicy mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
waitid ioprio_set ioprio_get inotify_init inotify_add_watch inotify_rm_watch openat mkdirat mknodat fchownat futimesat newfstatat unlinkat
renameat linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll set_robust_list get_robust_list splice tee sync_file_range vmsplice
utimensat epoll_pwait signalfd timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2 epoll_create1
dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo recvmmsg prlimit64 syncfs sendmmsg getcpu process_vm_readv process_vm_writev
sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create execveat membarrier mlock2 copy_file_range preadv2 pwritev2
pkey_mprotect pkey_alloc pkey_free statx rseq pidfd_send_signal pidfd_open close_range openat2 pidfd_getfd faccessat2 process_madvise
epoll_pwait2 landlock_create_ruleset landlock_add_rule landlock_restrict_self process_mrelease futex_waitv set_mempolicy_home_node
cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue
"""
ALLOWED = tuple(_ALLOWED.split())
"""Calls that touch only the caller's own files, memory, processes and sockets. Names that this libseccomp does not know are left out."""

_REFUSED = """
mount umount2 pivot_root move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr setns
bpf perf_event_open userfaultfd keyctl add_key request_key io_uring_setup io_uring_enter io_uring_register
kexec_load kexec_file_load init_module finit_module delete_module create_module reboot swapon swapoff acct quotactl quotactl_fd syslog
settimeofday clock_settime clock_adjtime adjtimex iopl ioperm open_by_handle_at name_to_handle_at lookup_dcookie nfsservctl vhangup
sethostname setdomainname fanotify_init fanotify_mark kcmp move_pages migrate_pages ustat sysfs uselib modify_ldt
"""
REFUSED = tuple(_REFUSED.split())
"""Known calls that reach the kernel or the machine as a whole."""

NEW_NAMESPACES = 0x7E020000 | 0x80
"""The flags of clone and unshare that would make a namespace: CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET,TIME}."""

ADDRESS_FAMILIES = (1, 2, 10, 16)
"""Sockets that a sandbox may open: unix, IPv4, IPv6, netlink. Not vsock, which no namespace confines, nor packet, key, alg and the rest."""

PERSONALITIES = (0x0, 0x0008, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)
"""Allowed arguments of personality(): Linux, a 32-bit or old uname, no address randomisation (debuggers), asking for the present one."""
