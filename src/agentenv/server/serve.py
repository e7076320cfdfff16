"""Runs the server: listens, takes signals, and ends in order."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from agentenv.errors import ConfigError, InfrastructureError
from agentenv.monitoring.logs import logger
from agentenv.server.access import FirstKey
from agentenv.server.app import create_app
from agentenv.server.nodeapi.tunnel import http_protocol
from agentenv.server.services import Services, open_services
from agentenv.server.settings import ServerSettings

BACKLOG = 2048
KEEP_ALIVE = 400
"""Seconds for which an idle connection is kept: longer than clients keep theirs (the SDKs 300), for one that the server closes while a
request is on its way costs the client that request."""

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Listening:
    """A server that takes requests at `url`; `first_key` is there when this start has made one."""

    url: str
    services: Services
    first_key: FirstKey | None


class _Server(uvicorn.Server):
    """uvicorn without its own handling of signals: first the sandboxes are looked after, then it ends."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def listening(settings: ServerSettings, home: Path, *, given_key: str | None = None) -> AsyncIterator[Listening]:
    """A server that takes requests within the block.

    Raises `ConfigError` for files of a certificate that cannot be used, `InfrastructureError` for an address that cannot be listened on,
    and what `open_services` raises.
    """
    tls = _tls(settings)
    with _listener(settings) as listener:
        # With port 0, only now it is known which one it is.
        settings = settings.model_copy(update={"port": listener.getsockname()[1]})
        async with open_services(settings, home, given_key=given_key) as services:
            config = uvicorn.Config(
                create_app(services),
                http=http_protocol(services),
                log_config=None,
                access_log=False,
                lifespan="off",
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=round(settings.shutdown.grace),
                ssl_certfile=str(settings.tls.certificate) if tls else None,
                ssl_keyfile=str(settings.tls.key) if tls else None,
                server_header=False,
            )
            server = _Server(config)
            # From now on the kernel holds connections until they are taken, so that whoever is told the URL reaches it.
            listener.listen(BACKLOG)
            task = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                yield Listening(_url(settings, tls=tls), services, services.access.first_key)
            finally:
                server.should_exit = True
                await asyncio.wait({task})


async def serve(settings: ServerSettings, home: Path, *, given_key: str | None = None, announce: Callable[[Listening], None]) -> None:
    """Serves until SIGTERM or SIGINT, then leaves the sandboxes as the settings say; a second signal makes it end at once.

    `announce` is called when requests are taken. Raises what `listening` raises.
    """
    asked = _signals()
    async with listening(settings, home, given_key=given_key) as there:
        announce(there)
        await asked.first.wait()
        policy = there.services.settings.shutdown
        _log.warning("server.ending", policy=policy.policy, grace=policy.grace)
        leaving = asyncio.create_task(there.services.fleet.leave(policy.policy, policy.grace))
        hurry = asyncio.create_task(asked.second.wait())
        await asyncio.wait({leaving, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if leaving.done():
            leaving.result()
        leaving.cancel()


@dataclass(frozen=True, slots=True)
class _Asked:
    first: asyncio.Event
    second: asyncio.Event


def _signals() -> _Asked:
    asked = _Asked(asyncio.Event(), asyncio.Event())

    def come() -> None:
        (asked.second if asked.first.is_set() else asked.first).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, come)
    return asked


@contextmanager
def _listener(settings: ServerSettings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio sends small answers at once only over sockets that say that they are TCP's, and accepted ones are what the listener is.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            raise InfrastructureError(
                f"nothing can be listened for at {settings.host}:{settings.port}: {error.strerror}.", remedy="Choose another host or port."
            ) from error
        yield listener
    finally:
        listener.close()


def _tls(settings: ServerSettings) -> bool:
    files = settings.tls
    if files.certificate is None and files.key is None:
        return False
    if files.certificate is None or files.key is None:
        raise ConfigError("HTTPS needs both a certificate and its key", key="tls", remedy="Set tls.certificate and tls.key.")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{files.certificate} and {files.key} cannot be used: {error}", key="tls", remedy="Give PEM files.") from error
    return True


def _url(settings: ServerSettings, *, tls: bool) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if tls else 'http'}://{host}:{settings.port}"
