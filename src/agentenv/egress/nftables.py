"""The kernel's packet rules through libnftables, the library inside the program `nft`: a transaction in 0.7 ms, where the program takes 5.

See libnftables(3). Each call opens its own context, and with it a socket in the network namespace of the calling thread.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache

from agentenv.errors import InfrastructureError

LIBRARY = "libnftables.so.1"
_JSON = 1 << 4  # NFT_CTX_OUTPUT_JSON


class RulesRefused(InfrastructureError):
    """The kernel or libnftables did not take a text; `complaint` is what it said. Nothing of the text is in force."""

    def __init__(self, complaint: str) -> None:
        super().__init__(f"the kernel does not take these packet rules: {complaint or 'no reason was given'}.")
        self.complaint = complaint


def apply(text: str, *, check_only: bool = False) -> None:
    """Puts `text` (as for `nft -f`) in force as one transaction: all of it or nothing. Blocks for about a millisecond.

    With `check_only` the kernel is asked and nothing changes. Raises `RulesRefused`, and `InfrastructureError` without the library.
    """
    _library().run(text, check_only=check_only)


def ask(command: str) -> str:
    """The kernel's answer to a command that lists something, as JSON (libnftables-json(5)). Raises as `apply`."""
    return _library().run(command, json=True)


@cache
def _library() -> _Library:
    return _Library()


class _Library:
    """The loaded library. One call at a time: its documentation does not say that several may be made at once."""

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise InfrastructureError(f"{LIBRARY} cannot be loaded: {error}.", remedy="Install nftables.") from error
        library.nft_ctx_new.restype = ctypes.c_void_p
        library.nft_ctx_new.argtypes = [ctypes.c_uint32]
        library.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        for name in ("nft_ctx_free", "nft_ctx_buffer_output", "nft_ctx_buffer_error", "nft_ctx_get_output_buffer"):
            getattr(library, name).argtypes = [ctypes.c_void_p]
        library.nft_ctx_get_error_buffer.argtypes = [ctypes.c_void_p]
        library.nft_ctx_get_output_buffer.restype = library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
        library.nft_ctx_set_dry_run.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        library.nft_ctx_output_set_flags.argtypes = [ctypes.c_void_p, ctypes.c_uint]
        self._library = library
        self._turn = threading.Lock()

    def run(self, text: str, *, check_only: bool = False, json: bool = False) -> str:
        library = self._library
        with self._turn:
            context = library.nft_ctx_new(0)
            if not context:
                raise InfrastructureError("libnftables could not open a netlink socket.")
            try:
                library.nft_ctx_buffer_output(context)
                library.nft_ctx_buffer_error(context)
                library.nft_ctx_set_dry_run(context, check_only)
                if json:
                    library.nft_ctx_output_set_flags(context, _JSON)
                status = library.nft_run_cmd_from_buffer(context, text.encode())
                if status != 0:
                    complaint = library.nft_ctx_get_error_buffer(context).decode(errors="replace")
                    raise RulesRefused(complaint.strip().partition("\n")[0])
                answer: bytes = library.nft_ctx_get_output_buffer(context)
                return answer.decode(errors="replace")
            finally:
                library.nft_ctx_free(context)
