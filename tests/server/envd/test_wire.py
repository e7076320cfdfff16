"""Our messages against those of the E2B SDK: the same names, numbers and types in every message and method."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2b.envd.filesystem import filesystem_pb
from e2b.envd.process import process_pb
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from agentenv.server.envd.wire import filesystem_pb2, process_pb2

DERIVE = Path(__file__).parents[3] / "scripts" / "derive_wire.py"
PAIRS = [(process_pb2, process_pb), (filesystem_pb2, filesystem_pb)]


def facts(name: str, message: DescriptorProto) -> Iterator[tuple[object, ...]]:
    """What goes over the wire of a message and those in it."""
    for field in message.field:
        optional = field.label if not field.proto3_optional else "optional"
        oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") and not field.proto3_optional else None
        yield (name, field.name, field.number, field.type, optional, field.type_name, oneof)
    for inner in message.nested_type:
        yield from facts(f"{name}.{inner.name}", inner)


def all_facts(file: FileDescriptorProto) -> set[tuple[object, ...]]:
    found = {fact for message in file.message_type for fact in facts(message.name, message)}
    found |= {(enum.name, value.name, value.number) for enum in file.enum_type for value in enum.value}
    for service in file.service:
        for method in service.method:
            found.add((service.name, method.name, method.input_type, method.output_type, method.client_streaming, method.server_streaming))
    return found


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=["process", "filesystem"])
def test_the_messages_are_those_of_the_sdk(ours: object, theirs: object) -> None:
    mine = FileDescriptorProto()
    ours.DESCRIPTOR.CopyToProto(mine)  # type: ignore[attr-defined]
    sdk = FileDescriptorProto.FromString(theirs.desc().proto.to_binary())  # type: ignore[attr-defined]
    assert (mine.package, all_facts(mine)) == (sdk.package, all_facts(sdk))


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="the compiler of .proto files (grpcio-tools) is not installed")
def test_the_python_is_what_the_proto_files_say() -> None:
    assert subprocess.run([sys.executable, DERIVE, "--check"], check=False).returncode == 0
