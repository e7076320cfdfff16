"""Which stages of a plan a build needs, and what the names of bases mean."""

from __future__ import annotations

from collections.abc import Mapping

from agentenv.errors import ConfigError
from agentenv.images.oci import Reference
from agentenv.images.store import SCRATCH
from agentenv.naming import near
from agentenv.node.templates import SCHEME
from agentenv.templates.dockerfile.words import expand
from agentenv.templates.plan import Copy, Plan, Stage

OWN = ("host", "debian", SCRATCH)
_SCHEMES = ("dir:", "tar:", "oci:", "docker-daemon:", "podman:", "sha256:", SCHEME)


def image_reference(name: str) -> str:
    """What FROM NAME means: one of AgentENV's own images and schemes, else an image of a registry, Docker Hub where none is named.

    Raises `ConfigError` for what is no name of an image.
    """
    if name in OWN or name.startswith(_SCHEMES):
        return name
    reference = Reference.from_docker(name)
    if reference is None:
        raise ConfigError(f"{name!r} is no name of an image", remedy="Write NAME:TAG, REGISTRY/NAME:TAG, `host` or `debian`.")
    return str(reference)


def target_stage(plan: Plan, name: str | None) -> Stage:
    """The stage called so (or so numbered), the last without a name. Raises `ConfigError`."""
    if name is None:
        return plan.stages[-1]
    found = stage_called(plan, name)
    if found is None:
        meant = near(name, [stage.name for stage in plan.stages])
        remedy = f"Did you mean {meant!r}?" if meant else f"There are {', '.join(stage.name for stage in plan.stages)}."
        raise ConfigError(f"there is no stage {name!r}", file=plan.file, remedy=remedy)
    return next(stage for stage in plan.stages if stage.name == found)


def stage_called(plan: Plan, name: str) -> str | None:
    """The name of the stage that is called so, or has that number; None where there is none."""
    if name.isdigit() and int(name) < len(plan.stages):
        return plan.stages[int(name)].name
    return next((stage.name for stage in plan.stages if stage.name == name.lower()), None)


def needed_stages(plan: Plan, target: Stage, values: Mapping[str, str]) -> list[Stage]:
    """The stages without which `target` cannot be built, it included, in the plan's order. `values` are those of its ARGs.

    Raises `ConfigError` for a COPY from a stage that comes later.
    """
    names = {stage.name: number for number, stage in enumerate(plan.stages)}
    needed: set[str] = set()
    pending = [target]
    while pending:
        stage = pending.pop()
        if stage.name in needed:
            continue
        needed.add(stage.name)
        for name, line in _uses(plan, stage, values):
            if names[name] >= names[stage.name]:
                raise ConfigError(f"stage {stage.name!r} copies from {name!r}, which comes later", file=plan.file, line=line)
            pending.append(plan.stages[names[name]])
    return [stage for stage in plan.stages if stage.name in needed]


def _uses(plan: Plan, stage: Stage, values: Mapping[str, str]) -> list[tuple[str, int]]:
    found = []
    base = stage.base if stage.verbatim else expand(stage.base, values, plan.escape).lower()
    if not stage.verbatim and any(one.name == base and one.line < stage.line for one in plan.stages):
        found.append((base, stage.line))
    for step in stage.steps:
        if isinstance(step, Copy) and step.source is not None and (name := stage_called(plan, step.source)) is not None:
            found.append((name, step.line))
    return found
