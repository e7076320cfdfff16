"""The smallest guest: 448 bytes that count in memory and print the count on the serial port, a hundred times a second.

It is what the driver is tried with where no Linux is wanted, or none comes up. Its source is tests/isolation/firecracker/guest.S: the tests
assemble it anew and compare.
"""

from __future__ import annotations

import base64
import struct
from pathlib import Path

_ADDRESS = 0x100000  # the lowest at which Firecracker loads a kernel
_ELF = struct.Struct("<16s2HI3QI6H")
_SEGMENT = struct.Struct("<2I6Q")
_CODE = base64.b85decode(
    "ya0e807#1stN{Q3zW@M007!+&bPq_04@iN>01yBGNdL*}><=K=NQ(eSB>?dM|47F`7y|$x0Jwty0MJN@1SJ3jAOODr007Xr2mk;8fj@R>a&&bVgMSDGbPY&>"
    "#{duj0RPE#=j#RNk^lezuo31Uups6kumt8IumR>Fu>R&DNR0(Q0001Hi3BA8A|L=}#{?w;A|L<=0A|MoB?KZM0053i!RQcXi3BAEA|L<{0UhoD006Kw=0mWY"
    "=0LD6=0N-O>-|Xo1SJ3vAOJ{<93=n{AOO1f0{{TI5C8xGNWsGdh}a|#1TZ`~b^-(^?*GYk>#z#$ups6jNYBSdZ~*`S0LMpg0{{R3$44Xp0002TM<4(I0075F"
    "Bmn>b0LMol0RR91$477r0000n$+!S8AOML^FoS<I0CZNzM>r4w004=HfB*mh$A^Rf000000051U00aO4iI<Q70075_lmGw#00000jgSBc004=Xpa1{>$A_c<"
    "000000075FL;(N*00jUL0095NgZTt<p~pvX4*&oF!w(;T00000{|^8lAOHXW003qWA4C8E0000000000"
)
_PAGES = struct.Struct("<Q")  # the last thing in the code


def write_kernel(path: Path, *, pages: int = 0) -> Path:
    """Writes it to `path` as a kernel that first touches `pages` pages of 4 KiB, from 4 MiB on. Raises OSError."""
    code = _CODE[: -_PAGES.size] + _PAGES.pack(pages)
    begin = _ELF.size + _SEGMENT.size
    identity = b"\x7fELF" + bytes((2, 1, 1))  # 64 bits, little-endian
    header = _ELF.pack(identity, 2, 62, 1, _ADDRESS, _ELF.size, 0, 0, _ELF.size, _SEGMENT.size, 1, 0, 0, 0)  # an executable for x86-64
    path.write_bytes(header + _SEGMENT.pack(1, 7, begin, _ADDRESS, _ADDRESS, len(code), len(code), 1) + code)
    return path


def count(console: str) -> int | None:
    """The last count that was printed whole, None where there is none yet."""
    whole = [line for line in console.split("\n")[:-1] if len(line) == 16 and set(line) <= set("0123456789abcdef")]
    return int(whole[-1], 16) if whole else None
