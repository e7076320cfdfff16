"""The Python environment: its version, and whether every dependency is installed, new enough and can be imported."""

from __future__ import annotations

import re
import sys
from importlib import import_module, metadata
from importlib.util import find_spec

from agentenv.cli.health.check import Finding
from agentenv.version import __version__

NEEDED = {
    "dnspython": ("dns", "2.6"),
    "gymnasium": ("gymnasium", "1.1"),
    "httpcore": ("httpcore", "1.0"),
    "httpx": ("httpx", "0.27"),
    "msgspec": ("msgspec", "0.19"),
    "numpy": ("numpy", "1.26"),
    "prometheus-client": ("prometheus_client", "0.20"),
    "pydantic": ("pydantic", "2.9"),
    "pyyaml": ("yaml", "6.0"),
    "qemu.qmp": ("qemu.qmp", "0.0.3"),
    "rich": ("rich", "13.7"),
    "structlog": ("structlog", "24.1"),
    "typer": ("typer", "0.15"),
}
"""What AgentENV cannot do without: distribution, module, least version. A test holds it to pyproject.toml."""

FOR_TRAINING = {
    "torch": ("torch", "2.3"),
    "stable-baselines3": ("stable_baselines3", "2.4"),
    "tensorboard": ("tensorboard", "2.16"),
    "matplotlib": ("matplotlib", "3.8"),
}
"""What `agentenv train` needs: the extra "train"."""

_LEAST_PYTHON = (3, 11)


def python_environment() -> Finding:
    """Imports what is needed; what only training needs is looked up, since importing torch takes seconds."""
    shown = ".".join(str(part) for part in sys.version_info[:3])
    data: dict[str, object] = {"python": shown, "executable": sys.executable, "agentenv": __version__}
    if sys.version_info[:2] < _LEAST_PYTHON:
        return Finding("python", "failed", f"Python {shown} is too old", remedy="Use Python 3.11 or newer.", data=data)
    faults = [fault for name, (module, least) in NEEDED.items() if (fault := _fault(name, module, least, load=True))]
    data["versions"] = {name: _version(name) for name in (*NEEDED, *FOR_TRAINING)}
    if faults:
        remedy = "Install them in this environment: `pip install -r requirements.txt` in a clone, or `pip install agentenv`."
        return Finding("python", "failed", "; ".join(faults), remedy=remedy, data=data)
    absent = [fault for name, (module, least) in FOR_TRAINING.items() if (fault := _fault(name, module, least, load=False))]
    summary = f"Python {shown}, agentenv {__version__}, every dependency can be imported"
    if absent:
        remedy = "Install what training needs: `pip install 'agentenv[train]'`."
        without = "Sandboxes and environments work; `agentenv train` does not."
        return Finding("python", "limited", summary, remedy=remedy, without=without, details=tuple(absent), data=data)
    return Finding("python", "ok", f"{summary}, training's too", data=data)


def _fault(distribution: str, module: str, least: str, *, load: bool) -> str | None:
    """What is wrong with one dependency, or None."""
    version = _version(distribution)
    if version is None and find_spec(module) is None:
        return f"{distribution} is not installed"
    if version is not None and _numbers(version) < _numbers(least):
        return f"{distribution} {version} is older than {least}"
    if load:
        try:
            import_module(module)
        except ImportError as error:
            return f"{distribution} cannot be imported ({error})"
    return None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers at the beginning of a version: 2.3.1+cpu -> (2, 3, 1)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
