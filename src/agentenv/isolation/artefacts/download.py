"""Fetching one file over HTTPS: resumed where it broke off, counted, and checked."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

from agentenv.isolation.artefacts.recipe import Progress

BLOCK = 1 << 18
PATIENCE = 10.0
"""Seconds without a byte, or without a connection."""


def download(url: str, target: Path, progress: Progress) -> None:
    """Fetches `url` to `target`; what an earlier attempt left at `<target>.partial` is gone on with.

    Raises OSError (`urllib.error.URLError` is one) when the place cannot be reached or breaks off.
    """
    partial = target.with_name(f"{target.name}.partial")
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        # All of it was there already.
        partial.replace(target)
        return
    with answer:
        resumed = answer.status == 206
        done = have if resumed else 0
        total = done + int(answer.headers.get("Content-Length") or 0)
        with partial.open("ab" if resumed else "wb") as file:
            while block := answer.read(BLOCK):
                file.write(block)
                done += len(block)
                progress(f"fetching {target.name}", done, max(total, done))
    if done < total:
        raise OSError(f"the connection broke off after {done} of {total} bytes")
    partial.replace(target)
