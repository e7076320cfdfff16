"""Makes a machine's mounts and runs `runsc` on them, in a thread that has mounts of its own and is over when runsc is."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import InfrastructureError
from agentenv.isolation.contract import MachineSpec
from agentenv.isolation.gvisor import bundle as bundles
from agentenv.isolation.gvisor import mounts, ordinary, uplink
from agentenv.isolation.gvisor.bundle import Bundle
from agentenv.isolation.gvisor.runsc import explain
from agentenv.isolation.namespace import endpoint

# A shell, since a process enters cgroups of version 2 by itself or as a whole, and Python's children run no code of ours before runsc.
_ENTER_AND_RUN = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done; shift; exec "$@"'
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


@dataclass(frozen=True, slots=True)
class Birth:
    """One machine that runsc is to make. `command` is runsc's call, `groups` are the files that enter its cgroup.

    `stream` becomes the agent's standard input, `frames` its standard output. With `waits` it finds the whole world on its loopback.
    """

    spec: MachineSpec
    bundle: Bundle
    command: Sequence[str]
    groups: tuple[Path, ...]
    stream: int
    frames: int
    log: int
    waits: bool

    def begin(self) -> Future[None]:
        """Starts the thread. What comes of it: nothing, OSError for the mounts, or `InfrastructureError` with what runsc said."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # it cannot be called back; its processes can be killed
        threading.Thread(target=self._run, args=(done,), name=f"agentenv-birth-{self.spec.id}", daemon=True).start()
        return done

    def _run(self, done: Future[None]) -> None:
        try:
            if os.geteuid() == 0:
                self._mount()
                ended = self._run_program(self._words, _ENVIRONMENT)
            else:
                ended = self._as_ordinary_user()
            self._judge(ended)
        except (OSError, InfrastructureError) as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    def _mount(self) -> None:
        mounts.enter_private_namespace()
        os.sched_setaffinity(0, bundles.cores(self.spec))  # of this thread, which runsc inherits
        for tree in self.spec.root.trees:
            mounts.mount_overlay(tree, self.bundle.upper(tree), self.bundle.work(tree), self.bundle.mount_point(tree))
        for target, shown in self._covers:
            mounts.cover(target, shown)
        if self.waits:
            uplink.enter_waiting_room()
            mounts.cover(uplink.ROOT_ONLY, self.bundle.nothing)

    def _as_ordinary_user(self) -> int:
        overlays = [
            ordinary.Overlay(
                tree.target,
                [str(lower) for lower in tree.lowers],
                str(self.bundle.upper(tree)),
                str(self.bundle.work(tree)),
                str(self.bundle.mount_point(tree)),
            )
            for tree in self.spec.root.trees
        ]
        covers = [(str(target), str(shown)) for target, shown in self._covers]
        order = ordinary.descriptor_of(ordinary.Order(overlays, covers, bundles.cores(self.spec), self._words, _ENVIRONMENT))
        try:
            return self._run_program(ordinary.program(order), os.environ, order)
        finally:
            os.close(order)

    @property
    def _covers(self) -> list[tuple[Path, Path]]:
        return [] if self.spec.resources.memory is None else [(Path("/proc/meminfo"), self.bundle.meminfo)]

    @property
    def _words(self) -> list[str]:
        return ["/bin/sh", "-c", _ENTER_AND_RUN, "sh", *map(str, self.groups), "--", *self.command]

    def _run_program(self, words: Sequence[str], env: Mapping[str, str], *descriptors: int) -> int:
        return subprocess.run(
            words, stdin=self.stream, stdout=self.frames, stderr=self.log, cwd="/", env=env, pass_fds=descriptors, check=False
        ).returncode

    def _judge(self, status: int) -> None:
        if status != 0:
            told = explain(endpoint.read_log(self.log))
            raise InfrastructureError(f"runsc could not make the sandbox (status {status}): {told}", remedy="Run `agentenv doctor`.")
