"""References are read as Docker reads them, and never where another kind of image is meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.images.oci import Reference

DIGEST = "sha256:" + "0f" * 32


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("docker.io/library/python:3.12-slim", Reference("docker.io", "library/python", "3.12-slim")),
        ("docker.io/python", Reference("docker.io", "library/python", "latest")),
        ("localhost:5000/x", Reference("localhost:5000", "x", "latest")),
        ("localhost/x:1", Reference("localhost", "x", "1")),
        ("[::1]:5000/a/b", Reference("[::1]:5000", "a/b", "latest")),
        (f"ghcr.io/a/b__c.d-e@{DIGEST}", Reference("ghcr.io", "a/b__c.d-e", None, DIGEST)),
        (f"ghcr.io/a/b:1@{DIGEST}", Reference("ghcr.io", "a/b", "1", DIGEST)),
    ],
)
def test_a_reference_names_registry_repository_and_tag(text: str, meant: Reference) -> None:
    assert Reference.parse(text) == meant
    assert Reference.parse(str(meant)) == meant


@pytest.mark.parametrize(
    "text",
    ["host", "debian", "debian:12", "docker:debian", "dir:/a/b.c", "tar:/x.y/z", DIGEST, "team/app", "docker.io/", "docker.io/UPPER",
     "docker.io/a//b", "docker.io/a:", "docker.io/a@sha256:12", "docker.io/../etc", "docker.io/a b", "-x.y/a", "oci:x.y/z", ""],
)  # fmt: skip
def test_what_names_no_registry_is_no_reference(text: str) -> None:
    assert Reference.parse(text) is None


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("debian", "docker.io/library/debian:latest"),
        ("python:3.12", "docker.io/library/python:3.12"),
        ("team/app", "docker.io/team/app:latest"),
        ("localhost:5000/app", "localhost:5000/app:latest"),
        (f"python@{DIGEST}", f"docker.io/library/python@{DIGEST}"),
    ],
)
def test_short_names_are_docker_hubs(text: str, meant: str) -> None:
    assert str(Reference.from_docker(text)) == meant


@pytest.mark.parametrize("text", ["", "A", "a:b:c", "http://x/y", "a/../b", "localhost:5000/Bad"])
def test_what_docker_refuses_is_refused(text: str) -> None:
    assert Reference.from_docker(text) is None


COMPONENT = st.from_regex(r"[a-z0-9]{1,5}([._-][a-z0-9]{1,5})?", fullmatch=True)


@given(
    st.sampled_from(["docker.io", "localhost", "localhost:5000", "ghcr.io", "10.0.0.1:80"]),
    st.lists(COMPONENT, min_size=1, max_size=3),
    st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True),
    st.none() | st.just(DIGEST),
)
def test_writing_and_reading_are_each_others_inverse(registry: str, parts: list[str], tag: str | None, digest: str | None) -> None:
    text = f"{registry}/{'/'.join(parts)}" + (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")
    first = Reference.parse(text)
    assert first is not None
    assert Reference.parse(str(first)) == first
    assert first.registry == registry
    assert first.digest == digest
    assert first.repository.endswith("/".join(parts))


@given(st.text(max_size=40))
def test_no_text_breaks_it(text: str) -> None:
    found = Reference.from_docker(text)
    assert found is None or ".." not in found.repository.split("/")
