"""`agentenv serve`: turns this machine into a server."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentenv.cli.lazy import new_app
from agentenv.cli.output import JsonFlag, print_json
from agentenv.errors import CapabilityError
from agentenv.paths import state_home

if TYPE_CHECKING:
    from agentenv.server.serve import Listening

app = new_app(no_args_is_help=False)

FIRST_KEY = "AGENTENV_API_KEY"


@app.command("serve")
def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0 takes a free one [8700].", min=0, max=65535)] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="A YAML file with settings; docs/server.md lists them.")] = None,
    domain: Annotated[str | None, typer.Option(help="Where {port}-{id}.DOMAIN leads to this server [localhost:PORT].")] = None,
    database: Annotated[str | None, typer.Option(help="postgresql://USER:PASSWORD@HOST/NAME [SQLite in AGENTENV_HOME].")] = None,
    isolation: Annotated[str | None, typer.Option(help="The backend of all sandboxes [auto].")] = None,
    certificate: Annotated[Path | None, typer.Option("--tls-certificate", help="Serve HTTPS with this certificate (PEM).")] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", help="The certificate's private key (PEM).")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Serves E2B's API with the sandboxes of this machine until SIGTERM or Ctrl-C.

    Every setting can also be given as AGENTENV_SECTION_NAME. The first start makes an API key (or takes AGENTENV_API_KEY) and says where
    it lies.
    """
    try:
        from agentenv.server import serve as serving
        from agentenv.server.settings import load_settings
    except ModuleNotFoundError as error:
        raise CapabilityError(f"the server needs the package {error.name!r}.", remedy="Run `pip install 'agentenv[server]'`.") from error
    flags: dict[str, object] = {
        "host": host,
        "port": port,
        "domain": domain,
        "database": database,
        "sandboxes.isolation": isolation,
        "tls.certificate": certificate,
        "tls.key": key,
    }
    settings = load_settings(config, flags=flags)
    given = os.environ.get(FIRST_KEY) or None
    asyncio.run(serving.serve(settings, state_home(), given_key=given, announce=lambda there: _announce(there, as_json=as_json)))


def _announce(there: Listening, *, as_json: bool) -> None:
    first = there.first_key
    if as_json:
        key = {"api_key": first.secret, "api_key_file": str(first.file)} if first else {}
        print_json({"url": there.url, "docs": f"{there.url}/docs", "backend": there.services.ground.backend, **key})
        return
    typer.echo(f"AgentENV serves {there.url} with {there.services.ground.backend} sandboxes; the API is described at {there.url}/docs")
    if first:
        typer.echo(f"API key (shown this once, and kept in {first.file}): {first.secret}")
        typer.echo(f"  export E2B_API_URL={there.url} E2B_SANDBOX_URL={there.url} E2B_API_KEY={first.secret}")
    typer.echo("Ctrl-C ends it.")
