"""How messages are written: as protobuf, or as its JSON, and perhaps gzipped."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Literal, TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from agentenv.server.envd.connect.codes import Code, ConnectError
from agentenv.server.envd.connect.envelope import MAX_MESSAGE

M = TypeVar("M", bound=Message)

_GZIP_WINDOW = 31


@dataclass(frozen=True, slots=True)
class Codec:
    """One encoding of messages, inside of envelopes (`streaming`) or as whole bodies."""

    name: Literal["json", "proto"]
    streaming: bool

    @property
    def content_type(self) -> str:
        """The media type of requests and answers."""
        return f"application/{'connect+' if self.streaming else ''}{self.name}"

    def encode(self, message: Message) -> bytes:
        """A message as bytes."""
        if self.name == "proto":
            return message.SerializeToString()
        return json_format.MessageToJson(message, indent=None).encode()

    def decode(self, kind: type[M], content: bytes) -> M:
        """Bytes as a message; fields that are not known are left out. Raises `ConnectError` where they are none."""
        message = kind()
        try:
            if self.name == "proto":
                message.ParseFromString(content)
            else:
                # A body of nothing is an empty message, as clients without a JSON library send it.
                json_format.Parse(content or b"{}", message, ignore_unknown_fields=True)
        except (DecodeError, json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
            raise ConnectError(Code.INVALID_ARGUMENT, f"the request is no {self.name} of {kind.DESCRIPTOR.full_name}: {error}") from error
        return message


_CODECS = {codec.content_type: codec for name in ("json", "proto") for codec in (Codec(name, False), Codec(name, True))}


def codec_of(content_type: str, *, streaming: bool) -> Codec | None:
    """The codec that a request's Content-Type names; None when it fits no such call."""
    media, _, parameters = content_type.partition(";")
    codec = _CODECS.get(media.strip().lower())
    if codec is None or codec.streaming != streaming or parameters.strip().lower().replace('"', "") not in ("", "charset=utf-8"):
        return None
    return codec


def content_types(*, streaming: bool) -> str:
    """What `codec_of` knows, for the header Accept-Post."""
    return ", ".join(name for name, codec in _CODECS.items() if codec.streaming == streaming)


def check_compression(name: str) -> bool:
    """Whether a request says that its messages are gzipped. Raises `ConnectError` for any other compression."""
    if name.lower() in ("", "identity"):
        return False
    if name.lower() == "gzip":
        return True
    raise ConnectError(Code.UNIMPLEMENTED, f"the compression {name!r} is not known; use gzip or identity")


def gunzip(content: bytes) -> bytes:
    """What was compressed. Raises `ConnectError` for what is no gzip or grows beyond the size of a message."""
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    try:
        plain = unpacker.decompress(content, MAX_MESSAGE + 1)
    except zlib.error as error:
        raise ConnectError(Code.INVALID_ARGUMENT, f"a message that is said to be gzipped is not: {error}") from error
    if len(plain) > MAX_MESSAGE:
        raise ConnectError(Code.RESOURCE_EXHAUSTED, f"a message grows beyond the {MAX_MESSAGE} bytes that are taken when it is unpacked")
    if not unpacker.eof:
        raise ConnectError(Code.INVALID_ARGUMENT, "a gzipped message is cut off")
    return plain
