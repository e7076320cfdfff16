"""`agentenv keys` and `agentenv tenants`: who may use a server."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from agentenv.cli.lazy import new_app
from agentenv.cli.output import JsonFlag, console, print_json
from agentenv.cli.server_access import ApiKey, Server, ask, chosen_server
from agentenv.errors import ConfigError
from agentenv.units import format_size, parse_size

keys_app = new_app("Lists, makes and ends API keys of a server.")
tenants_app = new_app("Lists, makes, limits and removes the tenants of a server (for its operator).")

OfTenant = Annotated[str | None, typer.Option("--tenant", help="Of this tenant (for the operator); left out, your own.")]
Size = Annotated[str | None, typer.Option(help="Such as 64GB; `none` is without limit.")]
Number = Annotated[str | None, typer.Option(help="A number; `none` is without limit.")]
SIZES = ("memory", "storage")


def _keys_path(tenant: str | None) -> str:
    return "/api-keys" if tenant is None else f"/admin/tenants/{tenant}/api-keys"


@keys_app.command("ls")
def list_keys(tenant: OfTenant = None, server: Server = None, api_key: ApiKey = None, as_json: JsonFlag = False) -> None:
    """Shows the keys, without their secrets."""
    found = ask(chosen_server(server, api_key), "GET", _keys_path(tenant))
    if as_json:
        print_json(found)
        return
    from rich.table import Table

    table = Table("id", "name", "role", "key", "created", "last used")
    for key in found:
        mask = key["mask"]
        shown = f"{mask['prefix']}{mask['maskedValuePrefix']}…{mask['maskedValueSuffix']}"
        table.add_row(key["id"], key["name"], key["role"], shown, key["createdAt"][:19], (key["lastUsed"] or "never")[:19])
    console().print(table)


@keys_app.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="What to call it.")],
    role: Annotated[Literal["admin", "user", "read-only"], typer.Option(help="What it may do.")] = "user",
    tenant: OfTenant = None,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: JsonFlag = False,
) -> None:
    """Makes a key and shows its secret, this once."""
    made = ask(chosen_server(server, api_key), "POST", _keys_path(tenant), {"name": name, "role": role})
    if as_json:
        print_json(made)
    else:
        typer.echo(made["key"])


@keys_app.command("rm")
def delete_key(
    key: Annotated[str, typer.Argument(help="The key's id (`agentenv keys ls`).")],
    tenant: OfTenant = None,
    server: Server = None,
    api_key: ApiKey = None,
) -> None:
    """Ends a key at once."""
    ask(chosen_server(server, api_key), "DELETE", f"{_keys_path(tenant)}/{key}")
    typer.echo(f"{key} ended")


@tenants_app.command("ls")
def list_tenants(server: Server = None, api_key: ApiKey = None, as_json: JsonFlag = False) -> None:
    """Shows the tenants with what they have and may have."""
    found = ask(chosen_server(server, api_key), "GET", "/admin/tenants")
    if as_json:
        print_json(found)
        return
    from rich.table import Table

    names = ("sandboxes", "cpu", *SIZES, "templates")
    table = Table("name", "id", *names)
    for tenant in found:
        table.add_row(tenant["name"], tenant["id"], *(_used(tenant, name) for name in names))
    console().print(table)


@tenants_app.command("create")
def create_tenant(
    name: Annotated[str, typer.Argument(help="What to call it: a-z, 0-9, '.', '_' and '-'.")],
    sandboxes: Number = None,
    cpu: Number = None,
    memory: Size = None,
    storage: Size = None,
    templates: Number = None,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: JsonFlag = False,
) -> None:
    """Makes a tenant; `agentenv keys create --tenant NAME` then makes its keys."""
    quotas = _quotas(sandboxes=sandboxes, cpu=cpu, memory=memory, storage=storage, templates=templates)
    _told(ask(chosen_server(server, api_key), "POST", "/admin/tenants", {"name": name, "quotas": quotas}), as_json=as_json)


@tenants_app.command("limit")
def limit_tenant(
    name: Annotated[str, typer.Argument(help="A tenant's name or id.")],
    sandboxes: Number = None,
    cpu: Number = None,
    memory: Size = None,
    storage: Size = None,
    templates: Number = None,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: JsonFlag = False,
) -> None:
    """Changes what a tenant may have at once; what is not named stays."""
    quotas = _quotas(sandboxes=sandboxes, cpu=cpu, memory=memory, storage=storage, templates=templates)
    _told(ask(chosen_server(server, api_key), "PATCH", f"/admin/tenants/{name}", quotas), as_json=as_json)


@tenants_app.command("rm")
def delete_tenant(
    name: Annotated[str, typer.Argument(help="A tenant's name or id.")], server: Server = None, api_key: ApiKey = None
) -> None:
    """Removes a tenant that owns nothing any more."""
    ask(chosen_server(server, api_key), "DELETE", f"/admin/tenants/{name}")
    typer.echo(f"{name} removed")


def _told(tenant: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(tenant)
    else:
        limits = ", ".join(f"{name} {_shown(name, value)}" for name, value in tenant["quotas"].items())
        typer.echo(f"{tenant['name']} ({tenant['id']}): {limits}")


def _quotas(**given: str | None) -> dict[str, float | int | None]:
    return {name: _quota(name, text) for name, text in given.items() if text is not None}


def _quota(name: str, text: str) -> float | int | None:
    if text == "none":
        return None
    try:
        return parse_size(text) if name in SIZES else float(text) if name == "cpu" else int(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no limit", key=f"--{name}", remedy="Write a number or size, or none.") from error


def _used(tenant: dict[str, Any], name: str) -> str:
    return f"{_shown(name, tenant['usage'][name])} / {_shown(name, tenant['quotas'][name])}"


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "no limit"
    return format_size(int(value)) if name in SIZES else f"{value:g}"
