"""The LZ4 format that kernels are compressed with ("legacy frame"), since Python has no decoder for it.

Follows lz4_Block_format.md and lz4_Frame_format.md of https://github.com/lz4/lz4.
"""

from __future__ import annotations

import struct

MAGIC = 0x184C2102
LARGEST_BLOCK = 8 << 20
LEAST_MATCH = 4


def decompress_legacy(data: bytes) -> bytes:
    """All blocks of a legacy frame; what stands behind the last one (the kernel puts a length there) is ignored."""
    (magic,) = struct.unpack_from("<I", data)
    if magic != MAGIC:
        raise ValueError("no LZ4 legacy frame")
    out, position = bytearray(), 4
    while position + 4 < len(data):
        (size,) = struct.unpack_from("<I", data, position)
        position += 4
        if position + size > len(data):
            raise EOFError("it ends too early")
        block = decompress_block(data[position : position + size])
        out += block
        position += size
        if len(block) < LARGEST_BLOCK:
            break
    return bytes(out)


def decompress_block(block: bytes) -> bytes:
    """One block: literals and matches in turn, ending with literals."""
    out, position, end = bytearray(), 0, len(block)
    while position < end:
        token = block[position]
        position += 1
        literals = token >> 4
        if literals == 15:
            extra, position = _length(block, position)
            literals += extra
        out += block[position : position + literals]
        position += literals
        if position >= end:
            break
        distance = block[position] | block[position + 1] << 8
        position += 2
        match = token & 15
        if match == 15:
            extra, position = _length(block, position)
            match += extra
        match += LEAST_MATCH
        start = len(out) - distance
        if distance >= match:
            out += out[start : start + match]
        else:
            # A match that reaches into itself repeats its beginning.
            out += (out[start:] * (match // distance + 1))[:match]
    return bytes(out)


def _length(block: bytes, position: int) -> tuple[int, int]:
    total = 0
    while True:
        byte = block[position]
        position += 1
        total += byte
        if byte != 255:
            return total, position
