"""Who the kernel killed for want of memory, read from its log.

The kernel writes, for each kill, one line like (mm/oom_kill.c, `dump_oom_victim`)
`oom-kill:constraint=CONSTRAINT_MEMCG,…,oom_memcg=/group,task_memcg=/group,task=NAME,pid=7,uid=0`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

_KILL = re.compile(
    r"oom-kill:constraint=CONSTRAINT_MEMCG,.*?oom_memcg=(?P<group>[^,]*),task_memcg=[^,]*,task=(?P<name>.*),pid=\d+,uid=\d+$"
)
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")
_FIRST_USER_PRIORITY = 8
"""Below it are the kernel's own records; what a program writes into /dev/kmsg gets another facility (printk.c, `devkmsg_write`)."""


def parse_kill(record: str) -> tuple[str, str] | None:
    """(memory cgroup whose limit was reached, name of the killed process) of one /dev/kmsg record, None if it is about something else.

    A record is `priority,sequence,microseconds,flags[,…];text` (Documentation/ABI/testing/dev-kmsg). A process chooses its own name,
    of at most 15 bytes, which may hold commas: the last fields of the line bound it, and unprintable bytes come as `\\xNN`.
    """
    header, separator, body = record.partition(";")
    priority = header.split(",", 1)[0]
    if not separator or not priority.isdecimal() or int(priority) >= _FIRST_USER_PRIORITY:
        return None
    match = _KILL.match(body.split("\n", 1)[0])
    if match is None:
        return None
    return match["group"], _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), match["name"])


def read_records(path: str = "/dev/kmsg") -> Iterator[str]:
    """The records that the kernel still keeps, the oldest first; none where its log may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        while True:
            try:
                record = os.read(descriptor, 8192)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    # The oldest records were overwritten while we read; the next read goes on with what is left.
                    continue
                return
            if not record:
                return
            yield record.decode(errors="replace")
    finally:
        os.close(descriptor)


def killed_in(group: str) -> tuple[str, ...]:
    """Names of the processes killed because the cgroup whose path ends in `group` reached its limit, the oldest first."""
    kills = (parse_kill(record) for record in read_records())
    return tuple(name for where, name in filter(None, kills) if where.endswith(group))
