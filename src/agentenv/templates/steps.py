"""Carries out one step in a sandbox that has the files of the step before."""

from __future__ import annotations

import hashlib
import posixpath
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from agentenv.errors import AgentEnvError, BuildFailed, CapabilityError, ConfigError, InfrastructureError
from agentenv.images.reach import Reach
from agentenv.sandbox import AsyncSandbox
from agentenv.templates.accounts import ensure_user, owner_in
from agentenv.templates.dockerfile.ignore import Ignored
from agentenv.templates.files import place
from agentenv.templates.journal import Log, Printed
from agentenv.templates.material import LARGEST, unpacked
from agentenv.templates.plan import Copy, Run
from agentenv.templates.selection import Picked, Selection, select
from agentenv.templates.state import State

SCRIPT = "/tmp/.agentenv-build-step"
_URL = ("http://", "https://")
_GIT = ("git@", "git://", "ssh://")
_BLOCK = 1 << 20

Act = Callable[[AsyncSandbox], Awaitable[None]]
"""Does something in a sandbox."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step that is ready to be done: `key` is all that its result depends on besides the files before it."""

    key: str
    act: Act
    network: bool = False


def is_remote(source: str) -> bool:
    """Whether ADD fetches that from elsewhere, and not from the build's directory."""
    return source.startswith((*_URL, *_GIT)) or source.endswith(".git")


def prepare_run(step: Run, state: State, log: Log, file: str) -> Prepared:
    """A command, with the environment that the steps before have set."""
    user = step.user or state.user
    variables = dict(state.variables)

    async def act(sandbox: AsyncSandbox) -> None:
        argv = state.argv(step.command)
        if step.script is not None:
            await sandbox.files.write(SCRIPT, step.script, mode=0o755)
            argv = [SCRIPT]
        printed = Printed(log, step.text)
        try:
            ended = await sandbox.commands.run(
                argv,
                envs=variables,
                user=owner_in(sandbox, user),
                cwd=state.cwd,
                on_stdout=printed.piece,
                on_stderr=printed.piece,
            )
        except AgentEnvError as error:
            raise BuildFailed(error.message, step=step.text, file=file, line=step.line, remedy=error.remedy) from error
        finally:
            output = printed.end()
        if ended.exit_code != 0:
            raise BuildFailed(f"ended with status {ended.exit_code}", step=step.text, file=file, line=step.line, output=output)

    described = [str(step.command), str(step.script), user, state.cwd, *state.shell, str(step.network), str(sorted(variables.items()))]
    return Prepared(key_of("RUN", *described), act, step.network)


def prepare_user(user: str) -> Prepared:
    """Somebody whom later steps run as."""

    async def act(sandbox: AsyncSandbox) -> None:
        await ensure_user(sandbox, user)

    return Prepared(key_of("USER", user), act)


def prepare_workdir(path: str, user: str) -> Prepared:
    """A directory that later steps run in, of the user that they run as."""

    async def act(sandbox: AsyncSandbox) -> None:
        await sandbox.files.make_dir(path, user=owner_in(sandbox, user))

    return Prepared(key_of("WORKDIR", path, user), act)


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where a build puts files for the moment (`place`), how far it fetches from (`reach`), and what is undone after a step (`held`)."""

    place: Path | None
    reach: Reach
    held: ExitStack

    def directory(self) -> Path:
        """A fresh one."""
        return Path(self.held.enter_context(tempfile.TemporaryDirectory(prefix="agentenv-build-", dir=self.place)))


def prepare_copy(step: Copy, state: State, escape: str, source: tuple[Path, Ignored], shop: Workshop) -> Prepared:
    """Files of `source`, which stay where they are for the step. Raises `ConfigError`, and of URLs what fetching them does."""
    words = [state.expand(word, escape, verbatim=step.verbatim) for word in step.sources]
    destination = state.path(state.expand(step.destination, escape, verbatim=step.verbatim))
    owner = state.expand(step.chown, escape, verbatim=step.verbatim) if step.chown else state.user if step.archive else None
    mode = _mode(state.expand(step.chmod, escape, verbatim=step.verbatim)) if step.chmod else None
    urls = [word for word in words if step.add and word.startswith(_URL)]
    if step.add and any(word.startswith(_GIT) or word.endswith(".git") for word in words):
        raise ConfigError("ADD of a git repository is not supported", remedy="Use `RUN git clone …`.")
    if len(words) + len(step.inline) > 1 and not destination.endswith("/"):
        raise ConfigError(f"several files go into a directory, and {destination!r} is none", remedy="End the destination with a slash.")
    parts: list[tuple[Selection, bool]] = []
    if plain := [word for word in words if word not in urls]:
        selection = select(source[0], plain, source[1])
        parts += _without_archives(selection, shop) if step.add else [(selection, False)]
    if urls or step.inline:
        scratch = shop.directory()
        parts += [(_downloaded(url, scratch / str(number), step.checksum, shop.reach), False) for number, url in enumerate(urls)]
        parts += [(_written(one.name, _content(one.content, one.expand, state, escape), scratch), False) for one in step.inline]

    async def act(sandbox: AsyncSandbox) -> None:
        if owner is not None:
            await ensure_user(sandbox, owner)
        for selection, from_archive in parts:
            keep = from_archive and owner is None
            await place(sandbox, selection, destination, directory=from_archive, owner=owner_in(sandbox, owner), mode=mode, owners=keep)

    digests = [f"{selection.digest()} {selection.single} {from_archive}" for selection, from_archive in parts]
    return Prepared(key_of("COPY", destination, str(owner), str(mode), *digests), act)


def key_of(*parts: str) -> str:
    """A digest of texts, of each by itself."""
    hasher = hashlib.sha256()
    for part in parts:
        encoded = part.encode(errors="surrogateescape")
        hasher.update(f"{len(encoded)}:".encode() + encoded)
    return hasher.hexdigest()


def _mode(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise ConfigError(f"--chmod={text} is no mode in octal digits") from None


def _without_archives(selection: Selection, shop: Workshop) -> list[tuple[Selection, bool]]:
    """For ADD: archives that were named themselves give their content in their place."""
    plain: list[Picked] = []
    found: list[tuple[Selection, bool]] = []
    for entry in selection.entries:
        tree = _unpacked(entry.path, shop) if entry.named else None
        if tree is None:
            plain.append(entry)
        else:
            found.append((select(tree, ["."]), True))
    return [(Selection(tuple(plain), selection.single), False), *found] if plain else found


def _unpacked(path: Path, shop: Workshop) -> Path | None:
    with ExitStack() as stack:
        try:
            tree = stack.enter_context(unpacked(path, shop.place))
        except CapabilityError:
            return None
        if not any(tree.iterdir()):
            return None
        shop.held.push(stack.pop_all())
        return tree


def _content(text: str, expands: bool, state: State, escape: str) -> str:
    """A here-document's text; quotes in it mean themselves."""
    if not expands:
        return text
    return "".join(
        state.expand(line.replace('"', f'{escape}"').replace("'", f"{escape}'"), escape) for line in text.splitlines(keepends=True)
    )


def _written(name: str, content: str, scratch: Path) -> Selection:
    path = scratch / f"inline-{name}"
    path.write_text(content)
    path.chmod(0o644)
    return Selection((Picked(name, path),), True)


def _downloaded(url: str, directory: Path, checksum: str | None, reach: Reach) -> Selection:
    import httpx  # a tenth of a second, which only those pay who fetch something

    name = posixpath.basename(urlsplit(url).path)
    if not name:
        raise ConfigError(f"{url} names no file", remedy="Name a file by the URL.")
    directory.mkdir()
    path, digest = directory / name, hashlib.sha256()
    timeout = httpx.Timeout(60.0, connect=10.0)
    try:
        with (
            reach.client(timeout=timeout, follow_redirects=True) as client,
            client.stream("GET", url) as answer,
            path.open("wb") as file,
        ):
            answer.raise_for_status()
            for block in answer.iter_bytes(_BLOCK):
                if file.tell() + len(block) > LARGEST:
                    raise CapabilityError(f"{url} has more than the {LARGEST} bytes that are fetched for one step.")
                file.write(block)
                digest.update(block)
    except httpx.HTTPError as error:
        raise InfrastructureError(f"{url} could not be fetched: {error or type(error).__name__}.") from error
    if checksum is not None and f"sha256:{digest.hexdigest()}" != checksum:
        raise ConfigError(f"{url} is sha256:{digest.hexdigest()} and not {checksum}")
    path.chmod(0o600)
    return Selection((Picked(name, path),), True)
