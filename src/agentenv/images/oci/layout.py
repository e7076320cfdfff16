"""Images in files: layouts (https://github.com/opencontainers/image-spec/blob/main/image-layout.md) and what `docker save` writes.

`oci:PATH` is a layout's directory, or an archive of one, or of `docker save`; `oci:PATH:NAME` is one of several images in it.
"""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, cast

import msgspec

from agentenv.errors import CapabilityError, NotFound
from agentenv.images.compression import decompressed
from agentenv.images.oci.documents import (
    CONFIG,
    LARGEST_DOCUMENT,
    MANIFEST,
    Descriptor,
    ImageConfig,
    Index,
    Manifest,
    check_digest,
    decode,
)

BLOCK = 1 << 20
MARK = "oci-layout"
SAVED = "manifest.json"
_NAMES = ("org.opencontainers.image.ref.name", "io.containerd.image.name")
Counted = Callable[[int, int], None]


class Files(Protocol):
    """Files by their names, in a directory or in an archive."""

    def open(self, name: str) -> tuple[BinaryIO, int]:
        """The file and its size in bytes; raises `FileNotFoundError`."""
        ...


class _Directory:
    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, name: str) -> tuple[BinaryIO, int]:
        path = self._path / name
        return path.open("rb"), path.stat().st_size


class _Archive:
    """An uncompressed tar archive; older versions of `docker save` have links in it for layers that occur twice."""

    def __init__(self, file: BinaryIO) -> None:
        self._archive = tarfile.TarFile(fileobj=file)
        self._members = {posixpath.normpath(member.name): member for member in self._archive.getmembers()}

    def open(self, name: str) -> tuple[BinaryIO, int]:
        member = self._members.get(posixpath.normpath(name))
        for _ in range(8):
            if member is None or not member.issym():
                break
            member = self._members.get(posixpath.normpath(posixpath.join(posixpath.dirname(member.name), member.linkname)))
        content = self._archive.extractfile(member) if member is not None and member.isfile() else None
        if content is None or member is None:
            raise FileNotFoundError(name)
        return cast("BinaryIO", content), member.size


class Layout:
    """One image in files, as a source of documents and blobs. `scratch` is where a compressed archive is unpacked meanwhile."""

    def __init__(self, path: Path, image: str | None, scratch: Path) -> None:
        self.name = f"oci:{path}{f':{image}' if image else ''}"
        self._image = image
        self._held = ExitStack()
        self._known: dict[str, str | bytes] = {}
        """Where the blobs with that digest are: the name of a file, or the content itself."""
        with ExitStack() as stack:
            self._files = self._open(path, scratch, stack)
            self._root = self._find()
            self._held = stack.pop_all()

    @classmethod
    def find(cls, text: str, scratch: Path) -> Layout:
        """The image that `text` (PATH or PATH:NAME) means. Raises `NotFound`, `CapabilityError`."""
        path, image = Path(text).expanduser().absolute(), None
        if not path.exists() and ":" in text:
            place, _, image = text.rpartition(":")
            path = Path(place).expanduser().absolute()
        return cls(path, image or None, scratch)

    def root(self) -> tuple[bytes, str]:
        """The image's manifest or index, with its media type."""
        return self._root

    def document(self, descriptor: Descriptor) -> tuple[bytes, str]:
        """A manifest or index that an index names, with its media type."""
        return self.config(descriptor), descriptor.mediaType

    def config(self, descriptor: Descriptor) -> bytes:
        """The configuration that a manifest names."""
        with self._opened(self._place(descriptor.digest)) as file:
            content = file.read(LARGEST_DOCUMENT + 1)
        if hashlib.sha256(content).hexdigest() != check_digest(descriptor.digest, self.name):
            raise CapabilityError(f"{self.name}: the content of {descriptor.digest} is something else.")
        return content

    def blob(self, descriptor: Descriptor, target: Path, counted: Counted) -> None:
        """Copies a blob to `target`; `counted` gets bytes done and bytes in all. Its content is checked when it is unpacked."""
        with self._opened(self._place(descriptor.digest)) as source, target.open("wb") as file:
            done = 0
            while block := source.read(BLOCK):
                file.write(block)
                done += len(block)
                counted(done, descriptor.size)

    def close(self) -> None:
        """Lets go of the files."""
        self._held.close()

    def __enter__(self) -> Layout:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _open(self, path: Path, scratch: Path, stack: ExitStack) -> Files:
        if path.is_dir():
            return _Directory(path)
        if not path.is_file():
            raise NotFound(f"{self.name} cannot be used: {path} does not exist.", remedy="Name an OCI layout, or an archive of one.")
        file: BinaryIO = stack.enter_context(path.open("rb"))
        plain = stack.enter_context(decompressed(file))
        if plain is not file:
            scratch.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(cast("BinaryIO", tempfile.TemporaryFile(dir=scratch)))  # noqa: SIM115 - the stack closes it
            while block := plain.read(BLOCK):
                file.write(block)
            file.seek(0)
        try:
            return _Archive(file)
        except tarfile.TarError as error:
            raise CapabilityError(f"{self.name} is no complete tar archive: {error}.") from error

    def _find(self) -> tuple[bytes, str]:
        try:
            index = decode(self._small("index.json"), Index, self.name)
        except FileNotFoundError:
            return self._saved()
        manifests = [entry for entry in index.manifests if self._image is None or self._image in _names(entry)]
        if not manifests:
            known = ", ".join(name for entry in index.manifests for name in _names(entry)) or "none with a name"
            raise NotFound(f"{self.name}: there is no image of that name in it; there are: {known}.")
        if len(manifests) > 1 and any(entry.platform is None for entry in manifests):
            known = ", ".join(name for entry in manifests for name in _names(entry))
            raise NotFound(f"{self.name} holds {len(manifests)} images: {known}.", remedy="Say which: `oci:PATH:NAME`.")
        if len(manifests) == 1:
            return self.document(manifests[0])
        return msgspec.json.encode(Index(tuple(manifests))), "application/vnd.oci.image.index.v1+json"

    def _saved(self) -> tuple[bytes, str]:
        """What `docker save` writes: a list of images, each with the files of its configuration and layers."""
        try:
            listed: list[dict[str, Any]] = json.loads(self._small(SAVED))
        except FileNotFoundError:
            raise CapabilityError(
                f"{self.name} is no OCI layout: it has neither index.json nor {SAVED}.", remedy="A root tree is `dir:PATH` or `tar:PATH`."
            ) from None
        fitting = [entry for entry in listed if self._image is None or self._image in (entry.get("RepoTags") or ())]
        if len(fitting) != 1:
            known = ", ".join(name for entry in listed for name in entry.get("RepoTags") or ()) or "none with a name"
            raise NotFound(f"{self.name}: name one image of it as `oci:PATH:NAME`; there are: {known}.")
        content = self._small(fitting[0]["Config"])
        diff_ids = decode(content, ImageConfig, self.name).rootfs.diff_ids
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self._known[digest] = content
        layers = []
        for diff_id, name in zip(diff_ids, fitting[0]["Layers"], strict=True):
            self._known[diff_id] = name
            file, size = self._files.open(name)
            file.close()
            layers.append(Descriptor(diff_id, size))
        return msgspec.json.encode(Manifest(Descriptor(digest, len(content), CONFIG), tuple(layers))), MANIFEST

    def _place(self, digest: str) -> str | bytes:
        return self._known.get(digest, f"blobs/sha256/{check_digest(digest, self.name)}")

    def _opened(self, place: str | bytes) -> BinaryIO:
        if isinstance(place, bytes):
            return io.BytesIO(place)
        try:
            return self._files.open(place)[0]
        except FileNotFoundError:
            raise CapabilityError(f"{self.name} is not whole: {place} is missing in it.") from None

    def _small(self, place: str) -> bytes:
        file, size = self._files.open(place)
        with file:
            if size > LARGEST_DOCUMENT:
                raise CapabilityError(f"{self.name}: {place} has {size} bytes; a document has at most {LARGEST_DOCUMENT}.")
            return file.read()


def _names(entry: Descriptor) -> list[str]:
    return [entry.annotations[name] for name in _NAMES if name in entry.annotations]
