#include "operations.h"

#include <errno.h>
#include <string.h>

#include "dial.h"
#include "exec.h"
#include "files.h"
#include "freeze.h"
#include "machine.h"
#include "tar.h"
#include "uplink.h"
#include "watch.h"

static const struct {
    const char *name;
    void (*start)(struct stream *stream, struct mp_value body);
} OPERATIONS[] = {
    {"exec", operation_exec},
    {"attach", operation_attach},
    {"processes", operation_processes},
    {"signal", operation_signal},
    {"read", operation_read},
    {"write", operation_write},
    {"stat", operation_stat},
    {"list", operation_list},
    {"mkdir", operation_mkdir},
    {"rename", operation_rename},
    {"remove", operation_remove},
    {"chmod", operation_chmod},
    {"chown", operation_chown},
    {"symlink", operation_symlink},
    {"attributes", operation_attributes},
    {"watch", operation_watch},
    {"tar_out", operation_tar_out},
    {"tar_in", operation_tar_in},
    {"dial", operation_dial},
    {"stats", operation_stats},
    {"stop_all", operation_stop_all},
    {"continue_all", operation_continue_all},
    {"configure", operation_configure},
    {"network", operation_network},
    {"freeze", operation_freeze},
    {"thaw", operation_thaw},
    {"restored", operation_restored},
    {"ping", operation_ping},
    {"shutdown", operation_shutdown},
};

void operation_start(struct stream *stream, struct mp_value body) {
    struct mp_value value;
    struct mp_bytes name;
    if (!mp_get(body, "op", &value) || !mp_bytes(value, &name)) {
        stream_fail(stream, EPROTO, "OPEN must name its operation in 'op'");
        return;
    }
    for (size_t i = 0; i < sizeof OPERATIONS / sizeof *OPERATIONS; i++) {
        if (strlen(OPERATIONS[i].name) == name.size && memcmp(OPERATIONS[i].name, name.at, name.size) == 0) {
            OPERATIONS[i].start(stream, body);
            return;
        }
    }
    stream_fail(stream, ENOSYS, "this agent has no operation '%.*s'", name.size > 64 ? 64 : (int)name.size, (const char *)name.at);
}
