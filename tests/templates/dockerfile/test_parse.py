"""Dockerfiles become plans, and what is wrong in one is said with its line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import ConfigError
from agentenv.templates.dockerfile import expand, parse
from agentenv.templates.plan import Copy, DeclareArg, InlineFile, Note, Run, SetEnv, SetShell, SetUser, Step, Workdir


def steps(text: str) -> tuple[Step, ...]:
    return parse(f"FROM x\n{text}").stages[0].steps


def test_a_whole_file() -> None:
    plan = parse(
        """# syntax=docker/dockerfile:1
# a comment
ARG VERSION=3.12
FROM python:${VERSION} AS build
RUN pip install \\
    # a comment within
    --no-cache \\

    numpy
from --platform=linux/amd64 build as Final
COPY --from=build --chown=app:staff --chmod=755 /a /b /c/
"""
    )
    assert plan.args == (DeclareArg(3, "ARG VERSION=3.12", (("VERSION", "3.12"),)),)
    assert [(stage.name, stage.base, stage.line) for stage in plan.stages] == [("build", "python:${VERSION}", 4), ("final", "build", 10)]
    (run,) = plan.stages[0].steps
    assert isinstance(run, Run)
    assert (run.line, str(run.command).split()) == (5, ["pip", "install", "--no-cache", "numpy"])
    (copy,) = plan.stages[1].steps
    assert copy == Copy(11, copy.text, ("/a", "/b"), "/c/", source="build", chown="app:staff", chmod="755")


def test_commands_are_lines_or_lists() -> None:
    assert [step.command for step in steps('RUN echo "a"  b\nRUN ["echo", "a b"]\nRUN [ -f x ]') if isinstance(step, Run)] == [
        'echo "a"  b',
        ("echo", "a b"),
        "[ -f x ]",
    ]
    found = steps('CMD ["a", "b"]\nENTRYPOINT run it\nHEALTHCHECK --interval=5s CMD curl x\nHEALTHCHECK NONE')
    assert [(step.fact, step.value) for step in found if isinstance(step, Note)] == [
        ("cmd", ("a", "b")),
        ("entrypoint", "run it"),
        ("healthcheck", "curl x"),
        ("healthcheck", None),
    ]


def test_here_documents() -> None:
    first, second, third, fourth = steps(
        """RUN <<EOF
echo one
  echo "$two"
EOF
RUN <<-'END' cat > x
	tabs
	END
RUN <<EOF
#!/usr/bin/python3
print(1)
EOF
COPY <<ONE <<"TWO" /dest/
one $A
ONE
two $A
TWO
"""
    )
    assert isinstance(first, Run)
    assert first.command == 'echo one\n  echo "$two"\n'
    assert isinstance(second, Run)
    assert second.command == "<<-'END' cat > x\ntabs\nEND\n"
    assert isinstance(third, Run)
    assert third.script == "#!/usr/bin/python3\nprint(1)\n"
    assert isinstance(fourth, Copy)
    assert (fourth.inline, fourth.sources, fourth.destination) == (
        (InlineFile("ONE", "one $A\n", True), InlineFile("TWO", "two $A\n", False)),
        (),
        "/dest/",
    )


def test_a_shift_in_a_command_is_no_here_document() -> None:
    (step,) = steps("RUN echo $((1<<3))")
    assert isinstance(step, Run)
    assert step.command == "echo $((1<<3))"


def test_the_other_instructions() -> None:
    found = steps(
        'ENV A=1 B="two words"\nENV OLD some value\nARG X=1 Y\nWORKDIR /a b\nUSER app:staff\nSHELL ["/bin/bash", "-c"]\n'
        "LABEL a=b c.d=e\nEXPOSE 80 443/udp\nVOLUME /data\nSTOPSIGNAL SIGINT\nMAINTAINER me\n"
    )
    assert [step for step in found if isinstance(step, SetEnv)] == [
        SetEnv(2, 'ENV A=1 B="two words"', (("A", "1"), ("B", '"two words"'))),
        SetEnv(3, "ENV OLD some value", (("OLD", "some value"),)),
    ]
    assert isinstance(found[2], DeclareArg)
    assert found[2].pairs == (("X", "1"), ("Y", None))
    assert found[3] == Workdir(5, "WORKDIR /a b", "/a b")
    assert found[4] == SetUser(6, "USER app:staff", "app:staff")
    assert found[5] == SetShell(7, 'SHELL ["/bin/bash", "-c"]', ("/bin/bash", "-c"))
    notes = {step.fact: step.value for step in found[6:10] if isinstance(step, Note)}
    assert notes == {"labels": {"a": "b", "c.d": "e"}, "exposed": ("80", "443/udp"), "volumes": ("/data",), "stopsignal": "SIGINT"}


def test_the_escape_directive_changes_what_continues_a_line() -> None:
    plan = parse("# escape=`\nFROM x\nRUN a `\n  b\nCOPY C:\\x /y\n")
    assert plan.escape == "`"
    run, copy = plan.stages[0].steps
    assert isinstance(run, Run)
    assert run.command == "a   b"
    assert isinstance(copy, Copy)
    assert copy.sources == ("C:\\x",)


def test_a_json_list_of_paths_keeps_their_blanks() -> None:
    (copy,) = steps('COPY ["a b", "c\'d\\\\e", "/f g/"]')
    assert isinstance(copy, Copy)
    assert [expand(word, {}) for word in (*copy.sources, copy.destination)] == ["a b", "c'd\\e", "/f g/"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", None, "it has no FROM"),
        ("RUN x", 1, "before the first FROM"),
        ("FROM", 1, "is not FROM IMAGE"),
        ("FROM a b", 1, "is not FROM IMAGE"),
        ("FROM a AS 1x", 1, "no name for a stage"),
        ("FROM a AS b\nFROM a AS B", 2, "a stage 'b' already"),
        ("FROM x\n\nRUNN y", 3, r"no instruction 'RUNN'.*RUN"),
        ("FROM x\nONBUILD RUN y", 2, "ONBUILD is not supported"),
        ("FROM x\nRUN", 2, "says nothing"),
        ("FROM x\nRUN --mount=type=secret,id=a y", 2, "--mount=type=secret,id=a is not supported"),
        ("FROM x\nRUN --bogus=1 y", 2, "has no flag --bogus"),
        ("FROM x\nCOPY a", 2, "needs a source and a destination"),
        ("FROM x\nCOPY --chmod=u+x a b", 2, "in octal"),
        ("FROM x\nADD --from=a b c", 2, "ADD has no flag --from"),
        ("FROM x\nADD --checksum=md5:1 b c", 2, "is no sha256"),
        ("FROM x\nENV a", 2, "is not NAME=VALUE"),
        ("FROM x\nENV 1a=b", 2, "is not NAME=VALUE"),
        ("FROM x\nENV a='b", 2, "has no partner"),
        ("FROM x\nARG a-b=c", 2, "is not NAME"),
        ("FROM x\nSHELL /bin/sh", 2, "needs a JSON list"),
        ("FROM x\nHEALTHCHECK curl", 2, "neither HEALTHCHECK CMD"),
        ("FROM x\nRUN <<EOF\necho", 2, "here-document 'EOF' does not end"),
        ("# escape=x\nFROM y", 1, "escape character is 'x'"),
        ("# escape=`\n# escape=`\nFROM y", 2, "there twice"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, line: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse(text)
    assert caught.value.file == "Dockerfile"
    assert caught.value.line == line


WORDS = st.sampled_from(
    ["FROM", "RUN", "COPY", "ENV", "ARG", "#", "\\\n", "\n", " ", "a", "=", "<<EOF", "EOF", "$x", '"', "'", "[", "]", "--from=", "\t"]
)


@given(st.lists(WORDS, max_size=25).map("".join))
def test_any_text_is_a_plan_or_a_clear_refusal(text: str) -> None:
    try:
        file = parse(text).file
    except ConfigError as error:
        file = error.file or ""
    assert file == "Dockerfile"


INSTRUCTIONS = st.tuples(
    st.sampled_from(["RUN", "WORKDIR", "USER", "CMD"]), st.from_regex(r"[a-z/][a-z0-9 /._-]{0,20}[a-z]", fullmatch=True)
)


@given(st.lists(INSTRUCTIONS, max_size=8))
def test_instructions_keep_their_lines_however_they_are_laid_out(instructions: list[tuple[str, str]]) -> None:
    text, lines = "FROM x\n", []
    for word, rest in instructions:
        text += "\n# c\n"
        lines.append(text.count("\n") + 1)
        text += f"{word.lower()} \\\n\n  {rest}\n"
    assert [step.line for step in parse(text).stages[0].steps] == lines
