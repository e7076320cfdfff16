"""Builds templates anew that are too old: on a base image that got patches since, every step is done again; on the same one, none is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import AgentEnvError
from agentenv.node import Node
from agentenv.node.templates import TemplateRecord
from agentenv.templates.journal import Log
from agentenv.templates.template import rebuild_template


@dataclass(frozen=True, slots=True)
class Renewed:
    """What became of a template: `changed` when its sandboxes start from other files now, `error` where it could not be built."""

    record: TemplateRecord
    changed: bool
    error: AgentEnvError | None = None


def is_renewable(record: TemplateRecord) -> bool:
    """Whether the Dockerfile that it was built from is still there."""
    dockerfile = record.source.get("dockerfile")
    return bool(dockerfile) and Path(str(dockerfile)).is_file()


async def renew_templates(
    node: Node, older_than: float, log: Log = lambda line: None, *, begun: Callable[[TemplateRecord], object] = lambda record: None
) -> list[Renewed]:
    """Builds what was built more than `older_than` seconds ago; one that fails keeps its old build, and no other from being built.

    `begun` is told each template before it is built.
    """
    limit = time.time() - older_than
    done = []
    for record in node.templates.all():
        if record.created > limit or not is_renewable(record):
            continue
        begun(record)
        try:
            built = await rebuild_template(node, record, log=log)
        except AgentEnvError as error:
            done.append(Renewed(record, False, error))
        else:
            done.append(Renewed(record, built.snapshot != record.snapshot))
    return done
