"""From the name of an environment to the object: `gymnasium:ID`, `module:Class` or `path.py:Class`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any


class LoadError(Exception):
    """The name does not lead to an environment; the message says which step failed and what there is instead."""


def load(target: str, options: Mapping[str, Any], render_mode: str | None) -> Any:
    """Builds the environment that `target` names, with `options` as its keyword arguments (and `render_mode` where one is asked for).

    Whatever the environment's own constructor raises passes through.
    """
    source, _, name = target.rpartition(":")
    if not source or not name:
        raise LoadError(f"{target!r} names no environment; write gymnasium:ID, module:Class or path.py:Class")
    arguments = dict(options) if render_mode is None else {**options, "render_mode": render_mode}
    if target.startswith("gymnasium:"):
        return _gymnasium(target.removeprefix("gymnasium:"), arguments)
    module = _from_file(Path(source)) if source.endswith(".py") else _from_module(source)
    return _class_of(module, source, name)(**arguments)


def _gymnasium(name: str, arguments: dict[str, Any]) -> Any:
    try:
        import gymnasium
    except ModuleNotFoundError as missing:
        if missing.name != "gymnasium":
            raise
        raise LoadError(f"gymnasium:{name} needs gymnasium in the sandbox's Python ({sys.executable}); install it in the image") from None
    try:
        return gymnasium.make(name, **arguments)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as unknown:
        near = get_close_matches(name, gymnasium.registry, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it knows {len(gymnasium.registry)} others."
        raise LoadError(f"gymnasium has no environment {name!r}; {hint} ({unknown})") from None


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise LoadError(f"there is no file {path} in the sandbox")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as missing:
        raise LoadError(
            f"{path.name} imports {missing.name!r}, which the sandbox's Python ({sys.executable}) does not have. Only the file itself"
            f" is brought along: install {missing.name!r} in the image, or, where it is a module of yours, put both into a package and name"
            " the environment `package.module:Class`, which brings all of it"
        ) from None
    return module


def _from_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not (name == missing.name or name.startswith(missing.name + ".")):
            raise
        raise LoadError(f"there is no module {missing.name!r} in the sandbox's Python ({sys.executable})") from None


def _class_of(module: ModuleType, source: str, name: str) -> Any:
    found = getattr(module, name, None)
    if callable(found):
        return found
    classes = [key for key, value in vars(module).items() if isinstance(value, type) and hasattr(value, "step")]
    raise LoadError(f"{source} has no class {name!r}; environments in it: {', '.join(classes) or 'none'}")
