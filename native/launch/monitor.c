/*
 * Virtual machine monitors of one owner: none of them outlives it.
 *
 * agentenv-launch warden: standard input is a socket whose other end the owner holds. Each message brings the pidfd of a monitor. When the
 * owner has ended, by whatever cause, all of them are killed. A parent-death signal would not do: it is sent when the *thread* that forked
 * ends, and a process that changes its user, as Firecracker's jailer does, loses it.
 *
 * agentenv-launch monitor --warden FD [--keep FD]… [--keep-files-whole] [--small-pages] [--netns PATH] [--chdir PATH] [--enter FILE]… -- PROGRAM ARGUMENT…: tells the warden of
 * itself, enters a network namespace, a directory and cgroups, and becomes the program, which has no other descriptors than those. The
 * warden cannot see the socket's end before that, since this process holds it as well.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernel.h"
#include "launch.h"

enum { CANNOT_BECOME = 125, CONTROL = STDIN_FILENO, PUNCH_HOLE = 2 /* FALLOC_FL_PUNCH_HOLE */ };

union pidfd_space {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

/* The next monitor's pidfd; -1 when there are no more monitors to come. */
static int receive_pidfd(void) {
    union pidfd_space space = {0};
    char byte;
    struct iovec content = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &content, .msg_iovlen = 1, .msg_control = space.bytes, .msg_controllen = sizeof space.bytes};
    ssize_t size;
    do size = recvmsg(CONTROL, &message, MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    if (size <= 0) return -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL || header->cmsg_type != SCM_RIGHTS) die("receiving a monitor");
    int pidfd;
    memcpy(&pidfd, CMSG_DATA(header), sizeof pidfd);
    return pidfd;
}

static void send_pidfd(int socket, int pidfd) {
    union pidfd_space space = {0};
    struct iovec content = {.iov_base = "", .iov_len = 1};
    struct msghdr message = {.msg_iov = &content, .msg_iovlen = 1, .msg_control = space.bytes, .msg_controllen = sizeof space.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof pidfd);
    memcpy(CMSG_DATA(header), &pidfd, sizeof pidfd);
    if (sendmsg(socket, &message, MSG_NOSIGNAL) < 0) {
        dprintf(STDERR_FILENO, "agentenv-launch: telling the warden: %s\n", strerror(errno));
        exit(CANNOT_BECOME);
    }
}

static void watch(int events, int descriptor) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = descriptor};
    if (epoll_ctl(events, EPOLL_CTL_ADD, descriptor, &event) < 0) die("watching a monitor");
}

static void allow_many_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

int be_warden(void) {
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    allow_many_descriptors();
    int highest = 0, events = epoll_create1(EPOLL_CLOEXEC);
    if (events < 0) die("watching");
    watch(events, CONTROL);
    for (struct epoll_event event;;) {
        if (epoll_wait(events, &event, 1, -1) <= 0) continue;
        if (event.data.fd != CONTROL) {
            close(event.data.fd); /* that monitor has ended */
            continue;
        }
        int pidfd = receive_pidfd();
        if (pidfd < 0) break;
        watch(events, pidfd);
        if (pidfd > highest) highest = pidfd;
    }
    /* What is no pidfd refuses the signal. */
    for (int descriptor = STDERR_FILENO + 1; descriptor <= highest; descriptor++) pidfd_send_signal(descriptor, SIGKILL);
    return 0;
}

static _Noreturn void fail(const char *what, const char *which) {
    dprintf(STDERR_FILENO, "agentenv-launch: %s %s: %s\n", what, which, strerror(errno));
    exit(CANNOT_BECOME);
}

/* The owner ignores some, and whoever started it perhaps others. */
static void default_signals(void) {
    static const unsigned long standard[4]; /* the kernel's struct sigaction: the default handler, no flags, an empty mask */
    for (int number = 1; number < NSIG; number++)
        syscall(SYS_rt_sigaction, number, standard, NULL, 8); /* the C library would refuse the numbers that it uses itself */
}

/*
 * To punch a hole into a file succeeds and does nothing. Where a guest frees memory that is mapped privately from a file, its monitor would
 * punch that file as well, which others map too (QEMU's ram_block_discard_range); after that it lets its own pages go, which is enough.
 */
static void keep_files_whole(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])), /* its mode; all machines of ours are little-endian */
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PUNCH_HOLE, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) fail("filtering", "system calls");
}

int become_monitor(int count, char **words) {
    static const struct option known[] = {
        {"warden", required_argument, NULL, 'w'}, {"keep", required_argument, NULL, 'k'},  {"netns", required_argument, NULL, 'n'},
        {"enter", required_argument, NULL, 'e'},  {"chdir", required_argument, NULL, 'd'}, {"keep-files-whole", no_argument, NULL, 'f'},
        {"small-pages", no_argument, NULL, 's'},  {NULL, 0, NULL, 0},
    };
    int self = pidfd_open(getpid());
    if (self < 0 || close_range_on_exec(STDERR_FILENO + 1) < 0) fail("closing", "descriptors (needs Linux 5.11)");
    for (int letter; (letter = getopt_long(count, words, "+", known, NULL)) != -1;) {
        switch (letter) {
        case 'w':
            send_pidfd(atoi(optarg), self);
            close(atoi(optarg));
            break;
        case 'k':
            if (fcntl(atoi(optarg), F_SETFD, 0) < 0) fail("keeping descriptor", optarg);
            break;
        case 'n': {
            int netns = open(optarg, O_RDONLY | O_CLOEXEC);
            if (netns < 0 || setns(netns, CLONE_NEWNET) < 0) fail("entering the network namespace", optarg);
            break;
        }
        case 'f': keep_files_whole(); break;
        case 's': prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); break;
        case 'd':
            if (chdir(optarg) < 0) fail("entering the directory", optarg);
            break;
        case 'e':
            if (write_text(optarg, "0") < 0) fail("entering the cgroup", optarg);
            break;
        default: return CANNOT_BECOME;
        }
    }
    if (optind >= count) return CANNOT_BECOME;
    default_signals();
    execv(words[optind], words + optind);
    fail("starting", words[optind]);
}
