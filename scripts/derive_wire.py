"""Writes the Python messages of the server's wire protocols from their .proto files: `python scripts/derive_wire.py [--check]`.

The result is checked in, so that nobody needs the compiler (`pip install grpcio-tools`; the version below makes messages that older
`protobuf` packages read, too); a test holds it current where the compiler is installed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
WIRE = SOURCE / "agentenv" / "server" / "envd" / "wire"
COMPILER = "grpcio-tools==1.75.1"


def derive(target: Path) -> list[Path]:
    """Compiles every .proto file into `target`; returns what was made, relative to it."""
    protos = sorted(WIRE.glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={SOURCE}", f"--python_out={target}", f"--pyi_out={target}"]
    subprocess.run([*command, *map(str, protos)], check=True)
    return sorted(path.relative_to(target) for path in target.rglob("*_pb2.py*"))


def main() -> int:
    """Writes the files, or with --check says whether they are current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when a file is not current")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        for name in derive(Path(scratch)):
            made = (Path(scratch) / name).read_bytes()
            if check and made != (SOURCE / name).read_bytes():
                print(f"{name} is not what its .proto file says; run scripts/derive_wire.py (with {COMPILER}).")
                return 1
            if not check:
                (SOURCE / name).write_bytes(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
