"""What a console tells."""

from __future__ import annotations

from agentenv.isolation.vm import console

CONSOLE = """
[    2.113400] Out of memory: Killed process 61 (python3 (main)) total-vm:123kB, anon-rss:99kB
[    2.700000] Memory cgroup out of memory: Killed process 70 (hog) total-vm:1kB
[    3.141592] Kernel panic - not syncing: VFS: Unable to mount root fs
"""


def test_who_was_ended_for_want_of_memory() -> None:
    assert console.killed_for_memory(CONSOLE) == ("python3 (main)", "hog")
    assert console.killed_for_memory("all is well") == ()


def test_why_the_kernel_gave_up() -> None:
    assert console.panic(CONSOLE) == "VFS: Unable to mount root fs"
    assert console.panic("all is well") is None
