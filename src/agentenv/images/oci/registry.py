"""An image in a registry, over HTTP (https://github.com/opencontainers/distribution-spec).

Written on httpx and not on the package `oras`, which takes each blob in one piece: a pull of gigabytes has to go on where it broke off,
with several layers at a time, each counted and checked.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import httpx

from agentenv.errors import AgentEnvError, CapabilityError, InfrastructureError, NotFound
from agentenv.images.oci.credentials import Credentials, find_credentials
from agentenv.images.oci.documents import ACCEPTED, LARGEST_DOCUMENT, Descriptor, check_digest
from agentenv.images.oci.reference import DOCKER_HUB, Reference
from agentenv.images.oci.registry_auth import RegistryAuth
from agentenv.images.reach import Reach

BLOCK = 1 << 18
ATTEMPTS = 5
"""Attempts at a blob that bring nothing; one that brings something counts anew."""

_HUB_ADDRESS = "https://registry-1.docker.io"
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
_UNREACHABLE = "Is the registry reachable from here? AGENTENV_REGISTRY_MIRRORS=docker.io=https://MIRROR names another place for one."
EVERYWHERE = Reach()
Counted = Callable[[int, int], None]


class Registry:
    """One repository, as a source of documents and blobs; its methods may be called from several threads.

    It is asked as who `login` says, and otherwise as who this user has logged in as. Neither it nor where it sends us may lie beyond
    `reach`.
    """

    def __init__(self, reference: Reference, login: Credentials | None = None, reach: Reach = EVERYWHERE) -> None:
        self.reference = reference
        self._login = login
        self.name = str(reference)
        self._stopped = threading.Event()
        self._client = reach.client(
            base_url=f"{address_of(reference.registry)}/v2/{reference.repository}/",
            auth=RegistryAuth(login or find_credentials(reference.registry)),
            timeout=_TIMEOUT,
            follow_redirects=True,
            headers={"User-Agent": "agentenv"},
        )

    def root(self) -> tuple[bytes, str]:
        """The manifest or index that the reference names, with its media type; checked where the reference has a digest.

        Raises `NotFound`, `CapabilityError` without the right to read it, `InfrastructureError` when the registry is out of reach.
        """
        content, media_type = self._document(f"manifests/{self.reference.wanted}", self.name)
        if self.reference.digest is not None:
            _check_content(content, self.reference.digest, self.name)
        return content, media_type

    def document(self, descriptor: Descriptor) -> tuple[bytes, str]:
        """A manifest or index that an index names, with its media type."""
        check_digest(descriptor.digest, self.name)
        what = f"{self.name} ({descriptor.digest})"
        content, media_type = self._document(f"manifests/{descriptor.digest}", what)
        _check_content(content, descriptor.digest, what)
        return content, descriptor.mediaType or media_type

    def config(self, descriptor: Descriptor) -> bytes:
        """The configuration that a manifest names."""
        check_digest(descriptor.digest, self.name)
        what = f"{self.name} ({descriptor.digest})"
        content, _ = self._document(f"blobs/{descriptor.digest}", what)
        _check_content(content, descriptor.digest, what)
        return content

    def blob(self, descriptor: Descriptor, target: Path, counted: Counted) -> None:
        """Fetches a blob to `target`; goes on with what an earlier attempt left there. `counted` gets bytes done and bytes in all.

        Raises `InfrastructureError` when it cannot be had whole, `CapabilityError` when its content is another than its digest says.
        """
        left, have = ATTEMPTS, _size(target)
        while have < descriptor.size:
            try:
                self._fetch(descriptor, target, have, counted)
            except httpx.TransportError as error:
                left = ATTEMPTS if _size(target) > have else left - 1
                if left == 0 or self._stopped.wait(0.1 * 2 ** (ATTEMPTS - left)):
                    raise InfrastructureError(
                        f"{self.name}: {descriptor.digest[:19]} broke off after {_size(target)} of {descriptor.size} bytes: {error}.",
                        remedy="What has come is kept: pull it again.",
                    ) from error
            have = _size(target)
        digest = hashlib.sha256()
        with target.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
        if f"sha256:{digest.hexdigest()}" != descriptor.digest or have != descriptor.size:
            target.unlink()
            raise CapabilityError(
                f"{self.name}: what came for {descriptor.digest} is something else ({have} bytes, sha256:{digest.hexdigest()}).",
                remedy="Pull it again; if that changes nothing, the registry's copy is broken.",
            )

    def close(self) -> None:
        """Ends the connections; waits for another attempt end as well."""
        self._stopped.set()
        self._client.close()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _fetch(self, descriptor: Descriptor, target: Path, have: int, counted: Counted) -> None:
        headers = {"Range": f"bytes={have}-"} if have else {}
        check_digest(descriptor.digest, self.name)
        with self._client.stream("GET", f"blobs/{descriptor.digest}", headers=headers) as answer:
            if answer.status_code not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
                raise self._refused(answer, f"{self.name} ({descriptor.digest})")
            resumed = answer.status_code == httpx.codes.PARTIAL_CONTENT
            done = have if resumed else 0
            with target.open("ab" if resumed else "wb") as file:
                for block in answer.iter_raw():
                    done += len(block)
                    if done > descriptor.size:
                        raise CapabilityError(f"{self.name}: more comes for {descriptor.digest} than its {descriptor.size} bytes.")
                    file.write(block)
                    counted(done, descriptor.size)
        if done < descriptor.size:
            raise httpx.ReadError("the connection ended too early")

    def _document(self, path: str, what: str) -> tuple[bytes, str]:
        try:
            with self._client.stream("GET", path, headers={"Accept": ACCEPTED}) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise self._refused(answer, what)
                content = bytearray()
                for block in answer.iter_bytes(BLOCK):
                    content += block
                    if len(content) > LARGEST_DOCUMENT:
                        raise CapabilityError(
                            f"{what}: the registry sends more than the {LARGEST_DOCUMENT} bytes that a document may have."
                        )
                return bytes(content), answer.headers.get("Content-Type", "").partition(";")[0].strip()
        except httpx.HTTPError as error:
            raise InfrastructureError(f"{what} could not be asked for: {error or type(error).__name__}.", remedy=_UNREACHABLE) from error

    def _refused(self, answer: httpx.Response, what: str) -> AgentEnvError:
        status = answer.status_code
        if status == httpx.codes.NOT_FOUND:
            return NotFound(f"the registry has no {what}.", remedy="Check the name and the tag.")
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            return CapabilityError(
                f"the registry does not let us read {what} (status {status}): it does not exist, or it is not for everybody.",
                remedy="Check the user name and the password."
                if self._login
                else f"`docker login {self.reference.registry}` or `podman login` writes down who you are.",
            )
        if status == httpx.codes.TOO_MANY_REQUESTS:
            return InfrastructureError(f"the registry has had too many requests from here for {what}.", remedy="Log in, or wait.")
        return InfrastructureError(f"the registry answered {status} when it was asked for {what}.", remedy="Try again later.")


def address_of(registry: str) -> str:
    """Where a registry is spoken to: its mirror where AGENTENV_REGISTRY_MIRRORS (`NAME=URL,…`) names one, else itself.

    By HTTPS, but for this machine's own and those that AGENTENV_INSECURE_REGISTRIES (`NAME,…`) names.
    """
    for entry in filter(None, os.environ.get("AGENTENV_REGISTRY_MIRRORS", "").split(",")):
        name, equals, url = entry.strip().partition("=")
        if name == registry and equals:
            return url.rstrip("/") if "://" in url else f"https://{url.rstrip('/')}"
    if registry == DOCKER_HUB:
        return _HUB_ADDRESS
    return f"http{'' if is_insecure(registry) or is_local(registry) else 's'}://{registry}"


def is_insecure(registry: str) -> bool:
    """Whether AGENTENV_INSECURE_REGISTRIES names it."""
    return registry in [name.strip() for name in os.environ.get("AGENTENV_INSECURE_REGISTRIES", "").split(",")]


def is_local(registry: str) -> bool:
    """Whether it is on this machine, or at a link-local address."""
    host = registry.rpartition(":")[0] if registry.rpartition(":")[2].isdigit() else registry
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        return address.is_loopback or address.is_link_local or address.is_unspecified
    except ValueError:
        return host == "localhost"


def _check_content(content: bytes, digest: str, what: str) -> None:
    if hashlib.sha256(content).hexdigest() != check_digest(digest, what):
        raise CapabilityError(f"{what}: what came for {digest} is something else.", remedy="Pull it again, or use another digest.")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
