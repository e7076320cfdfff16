"""E2B's build steps become plans, and what is wrong in them is said with the step's number."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import ConfigError
from agentenv.templates.e2b import base_of, file_hashes, plan_of, startup_of
from agentenv.templates.plan import Copy, Run, SetEnv, SetShell, SetUser, Workdir

HASH = "ab" * 32


def body(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"fromImage": "python:3.12", "steps": list(steps), **more}


def test_every_step_has_its_meaning() -> None:
    plan = plan_of(
        body(
            {"type": "RUN", "args": ["echo $x", "root"]},
            {"type": "RUN", "args": ["id", ""]},
            {"type": "COPY", "args": ["src", "/dst", "me", "0755"], "filesHash": HASH},
            {"type": "ENV", "args": ["A", "$1", "B", "2"]},
            {"type": "WORKDIR", "args": ["/srv"]},
            {"type": "USER", "args": ["worker"]},
        ),
        "docker.io/library/python:3.12",
    )
    (stage,) = plan.stages
    assert (stage.base, stage.verbatim, stage.fresh_from) == ("docker.io/library/python:3.12", True, None)
    assert [type(step) for step in stage.steps[:3]] == [SetShell, SetUser, Workdir]
    assert stage.steps[3:] == (
        Run(1, "RUN echo $x root", "echo $x", user="root"),
        Run(2, "RUN id", "id"),
        Copy(3, "COPY src /dst me 0755", ("src",), "/dst", chown="me", chmod="0755", archive=HASH, verbatim=True),
        SetEnv(4, "ENV A $1 B 2", (("A", "$1"), ("B", "2")), verbatim=True),
        Workdir(5, "WORKDIR /srv", "/srv", verbatim=True),
        SetUser(6, "USER worker", "worker", verbatim=True),
    )
    assert file_hashes(body({"type": "copy", "args": ["a", "b"], "filesHash": HASH})) == [HASH]


def test_one_that_is_built_on_a_template_begins_as_that_ended() -> None:
    (stage,) = plan_of(body({"type": "RUN", "args": ["id"]}), "template:x", on_template=True).stages
    assert [type(step) for step in stage.steps] == [SetShell, Run]


def test_force_begins_at_the_step_that_has_it() -> None:
    steps = [{"type": "RUN", "args": [name], "force": name == "b"} for name in "abc"]
    assert plan_of(body(*steps), "host").stages[0].fresh_from == 4
    assert plan_of(body(*steps, force=True), "host").stages[0].fresh_from == 0


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"type": "FLY", "args": []}, "there is no step 'FLY'"),
        ({"type": "RUN", "args": []}, "RUN does not take"),
        ({"type": "COPY", "args": ["a", "b"]}, "is no hash of files"),
        ({"type": "COPY", "args": ["a", "b"], "filesHash": "../../etc/passwd"}, "is no hash of files"),
        ({"type": "COPY", "args": ["a"], "filesHash": HASH}, "COPY does not take"),
        ({"type": "COPY", "args": ["a", "b", "", "u+x"], "filesHash": HASH}, "COPY does not take"),
        ({"type": "ENV", "args": ["A"]}, "ENV does not take"),
        ({"type": "USER"}, "USER does not take"),
    ],
)
def test_a_wrong_step_is_refused_with_its_number(step: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan_of(body({"type": "RUN", "args": ["id"]}, step), "host")
    assert caught.value.line == 2


def test_bases() -> None:
    assert base_of({"fromImage": "python:3.12"}) == ("docker.io/library/python:3.12", False)
    assert base_of({"fromImage": "debian"}) == ("debian", False)
    assert base_of({"fromTemplate": "mine:v1"}) == ("template:mine:v1", True)
    for wrong in (
        {},
        {"fromImage": "a", "fromTemplate": "b"},
        {"fromImage": "dir:/etc"},
        {"fromImage": "tar:/x"},
    ):
        with pytest.raises(ConfigError):
            base_of(wrong)


def test_start_and_ready_commands() -> None:
    startup = startup_of({"startCmd": "serve", "readyCmd": "test -e x"})
    assert (startup.command, startup.ready) == ("serve", "test -e x")
    assert startup_of({}).command is None


STEPS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["RUN", "COPY", "ENV", "WORKDIR", "USER", "X", ""]), "args": st.lists(st.text(max_size=4), max_size=4)},
        optional={"filesHash": st.sampled_from([HASH, "x"]), "force": st.booleans()},
    ),
    max_size=4,
)


@given(STEPS)
def test_any_steps_are_a_plan_or_a_clear_refusal(steps: list[dict[str, Any]]) -> None:
    try:
        count = len(plan_of({"steps": steps}, "host").stages[0].steps)
    except ConfigError as error:
        assert error.line in range(1, len(steps) + 1)  # noqa: PT017 - either outcome is right
    else:
        assert count == len(steps) + 3
