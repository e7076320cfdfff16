"""Handles files as the users of an unprivileged sandbox.

Without root, a sandbox's users are ids of a user namespace: its root is the caller, its others (where /etc/subuid grants some) are ids
that the caller is not. The caller may neither read nor remove what they keep to themselves. A child process in a user namespace with the
same mapping may, since it is root there (user_namespaces(7)).
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentenv.errors import InfrastructureError
from agentenv.isolation.namespace.probing import subordinate_ids

CLONE_NEWUSER = 0x10000000


def may_help() -> bool:
    """Whether another user could do more here: root can do everything already."""
    return os.geteuid() != 0


def call(action: str, *paths: Path) -> Any:
    """Has a child do one of the actions that `agentenv.node.mapped_child` offers; returns its result. Raises the OSError that it met."""
    with subprocess.Popen(
        [sys.executable, "-m", "agentenv.node.mapped_child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        if child.stdout.readline() == "unshared\n":
            order = {"map_self": not _map_ranges(child.pid), "action": action, "paths": [str(path) for path in paths]}
            child.stdin.write(json.dumps(order) + "\n")
            child.stdin.flush()
        line = child.stdout.readline()
    if not line:
        message = "the files of a sandbox's users cannot be handled: a user namespace was refused."
        raise InfrastructureError(message, remedy="Run `agentenv doctor`.")
    answer = json.loads(line)
    if "errno" in answer:
        raise OSError(answer["errno"], answer["text"], answer["path"])
    return answer["result"]


def serve(actions: Mapping[str, Callable[..., Any]]) -> None:
    """The child's part: enters a namespace, waits for the order, carries it out and prints the answer."""
    uid, gid = os.geteuid(), os.getegid()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) != 0:
        return
    _say("unshared")
    order = json.loads(sys.stdin.readline())
    if order["map_self"]:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    try:
        answer: dict[str, Any] = {"result": actions[order["action"]](*map(Path, order["paths"]))}
    except OSError as error:
        answer = {"errno": error.errno, "text": error.strerror, "path": error.filename}
    _say(json.dumps(answer))


def _map_ranges(pid: int) -> bool:
    """Gives the child the ids that this user's sandboxes have, as the launcher does; False where there are none."""
    users, groups = subordinate_ids(Path("/etc/subuid")), subordinate_ids(Path("/etc/subgid"))
    tools = shutil.which("newuidmap"), shutil.which("newgidmap")
    if users is None or groups is None or None in tools:
        return False
    for tool, own, span in (("newuidmap", os.geteuid(), users), ("newgidmap", os.getegid(), groups)):
        start, _, count = span.partition(":")
        subprocess.run([tool, str(pid), "0", str(own), "1", "1", start, count], check=True, capture_output=True)
    return True


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
