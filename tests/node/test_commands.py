"""Tools of the system as children: what they read, what they say, and how they fail."""

from __future__ import annotations

import pytest

from agentenv.errors import InfrastructureError
from agentenv.node.commands import CommandFailed, run


async def test_a_tool_reads_the_text_and_its_words_come_back() -> None:
    output = await run("sh", "-c", "cat; echo complaint >&2", text="line\n" * 100_000)
    assert output == (0, "line\n" * 100_000, "complaint")


async def test_a_tool_without_a_text_reads_nothing() -> None:
    assert (await run("cat")).text == ""


async def test_a_tool_may_end_without_reading_its_text() -> None:
    assert (await run("sh", "-c", "exec <&-; exit 3", text="line\n" * 100_000, check=False)).status == 3


async def test_a_failure_is_told_in_the_tools_own_words() -> None:
    with pytest.raises(CommandFailed, match="status 2: so it is"):
        await run("sh", "-c", "echo so it is >&2; exit 2")
    with pytest.raises(InfrastructureError, match="not installed"):
        await run("agentenv-no-such-program")
