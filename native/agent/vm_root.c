#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vm.h"

/* How long a disk may take to appear once the modules are loaded (seconds); all that is known are there at once. */
static const double DISK_PATIENCE = 10.0;

static const char LOWER[] = "/lower";
static const char UPPER[] = "/upper";
static const char ROOT[] = "/root";

/* Where a file system writes what it is; a disk is known by that, whichever place among the drives it has. */
static const struct {
    const char *type;
    off_t offset;
    size_t size;
    uint8_t magic[4];
} KNOWN[] = {
    {"erofs", 1024, 4, {0xe2, 0xe1, 0xf5, 0xe0}},
    {"squashfs", 0, 4, {'h', 's', 'q', 's'}},
    {"ext4", 1024 + 56, 2, {0x53, 0xef}},
};
enum { EXT4 = 2 };

struct disks {
    char lower[16], upper[16]; /* device files; empty: not found yet */
    const char *lower_type;
};

static int recognise(const char *device) {
    uint8_t found[4];
    int fd = open(device, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int which = sizeof KNOWN / sizeof *KNOWN - 1;
    while (which >= 0 && (pread(fd, found, KNOWN[which].size, KNOWN[which].offset) != (ssize_t)KNOWN[which].size ||
                          memcmp(found, KNOWN[which].magic, KNOWN[which].size) != 0))
        which--;
    close(fd);
    return which;
}

static void look_for_disks(struct disks *disks) {
    for (char letter = 'a'; letter <= 'z'; letter++) {
        char device[16];
        snprintf(device, sizeof device, "/dev/vd%c", letter);
        int which = recognise(device);
        if (which == EXT4)
            strcpy(disks->upper, device);
        if (which < 0 || which == EXT4)
            continue;
        strcpy(disks->lower, device);
        disks->lower_type = KNOWN[which].type;
    }
}

static void find_disks(struct disks *disks, bool wants_upper, int uevents) {
    double deadline = monotonic_seconds() + DISK_PATIENCE;
    look_for_disks(disks);
    while (!*disks->lower || (wants_upper && !*disks->upper)) {
        if (!vm_await_device(uevents, deadline))
            vm_fail(0, "no disk holds %s", *disks->lower ? "an ext4 file system for the writable files" : "a root image (EROFS or squashfs)");
        look_for_disks(disks);
    }
}

static void mount_upper(const struct vm_settings *settings, const char *device) {
    unsigned long long bytes = 0;
    char options[48] = "mode=0755", rest;
    if (*device) {
        /* The kernel would write all tables of inodes in the background, a 64th of the disk, of which the host then has to find room. */
        if (mount(device, UPPER, "ext4", MS_NOATIME, "discard,noinit_itable") != 0)
            vm_fail(errno, "cannot mount %s, the disk of the writable files", device);
        return;
    }
    if (strcmp(settings->upper, "tmpfs") != 0) {
        if (sscanf(settings->upper, "tmpfs:%llu%c", &bytes, &rest) != 1)
            vm_fail(0, "agentenv.upper must be 'disk', 'tmpfs' or 'tmpfs:BYTES', not '%s'", settings->upper);
        snprintf(options, sizeof options, "mode=0755,size=%llu", bytes);
    }
    if (mount("tmpfs", UPPER, "tmpfs", 0, options) != 0)
        vm_fail(errno, "cannot mount the memory of the writable files");
}

static void mount_overlay(bool *fresh) {
    *fresh = mkdir("/upper/upper", 0755) == 0;
    if ((!*fresh && errno != EEXIST) || (mkdir("/upper/work", 0700) != 0 && errno != EEXIST))
        vm_fail(errno, "cannot make the directories of the writable files");
    /* Left by the machine that this disk was copied from. It warns of a power cut without fsync; the copy was taken of a still disk. */
    unlink("/upper/work/work/incompat/volatile/dirty");
    rmdir("/upper/work/work/incompat/volatile");
    if (mount("overlay", ROOT, "overlay", 0, "lowerdir=/lower,upperdir=/upper/upper,workdir=/upper/work,volatile") != 0)
        vm_fail(errno, "cannot mount the root overlay");
}

static void move_below_root(const char *mounted) {
    char target[16];
    snprintf(target, sizeof target, "%s%s", ROOT, mounted);
    mkdir(target, 0755);
    if (mount(mounted, target, NULL, MS_MOVE, NULL) != 0)
        vm_fail(errno, "cannot move %s to the new root", mounted);
}

static void enter_root(void) {
    move_below_root("/dev");
    move_below_root("/proc");
    move_below_root("/sys");
    /* The program runs on; only its name, and its memory when it ends, go. */
    unlink("/init");
    if (chdir(ROOT) != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0 || chdir("/") != 0)
        vm_fail(errno, "cannot enter the new root");
}

int vm_mount_root(const struct vm_settings *settings, int uevents, bool *fresh) {
    bool wants_upper = strcmp(settings->upper, "disk") == 0;
    struct disks disks = {0};
    find_disks(&disks, wants_upper, uevents);
    mkdir(LOWER, 0755);
    mkdir(UPPER, 0755);
    mkdir(ROOT, 0755);
    if (mount(disks.lower, LOWER, disks.lower_type, MS_RDONLY, NULL) != 0)
        vm_fail(errno, "cannot mount %s, the root image (%s)", disks.lower, disks.lower_type);
    mount_upper(settings, wants_upper ? disks.upper : "");
    mount_overlay(fresh);
    int upper = open(UPPER, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enter_root();
    return upper;
}
