"""hatchling's hook: compiles the native programs before the wheel (or the editable install) is assembled."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent / "native"))

import build as native_build


class NativeBuildHook(BuildHookInterface[Any]):
    """Puts the binaries into `src/agentenv/_native`; asks for the zig compiler where the machine has none that works."""

    def dependencies(self) -> list[str]:
        return [] if native_build.compiler() else ["ziglang"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        native_build.build(root / "native", root / "src" / "agentenv" / "_native")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{os.uname().machine}"
