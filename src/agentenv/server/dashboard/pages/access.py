"""Keys of the viewer's tenant, and for the operator the tenants with their keys and quotas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nicegui import ui
from starlette.requests import Request

from agentenv.errors import ConfigError
from agentenv.server.access import Key, Quotas, Role, Tenant
from agentenv.server.catalogue import check_name
from agentenv.server.dashboard import machine
from agentenv.server.dashboard.pages.actions import asked
from agentenv.server.dashboard.pages.frame import Fragment, button, confirmed, frame
from agentenv.server.dashboard.rendering import clock
from agentenv.server.dashboard.viewer import Viewer
from agentenv.units import parse_size

LONGEST_NAME = 128
QUOTAS = (
    ("sandboxes", "Sandboxes at once"),
    ("cpu", "Cores"),
    ("memory", "Memory, such as 64GiB"),
    ("storage", "Storage, such as 1TB"),
    ("templates", "Templates"),
)


@ui.page("/keys")
async def keys(request: Request) -> None:
    """The page."""
    with frame(request, "Keys", "Keys") as viewer:
        principal = viewer.principal
        with ui.element("section").classes("card"):
            ui.html("<h2>You</h2>", sanitize=False)
            facts = [("Tenant", principal.tenant.name), ("Key", principal.key_name), ("Role", str(principal.role))]
            Fragment("facts.html", facts=facts)
        with ui.element("section").classes("card"):
            ui.html("<h2>What you have and may have</h2>", sanitize=False)
            Fragment("capacity.html", shares=machine.quotas(viewer.services, principal.tenant))
        if principal.role is Role.ADMIN:
            KeyTable(viewer, principal.tenant)
        if principal.operates:
            Tenants(viewer)


class KeyTable:
    """The keys of one tenant. A key's secret is shown once, when it is made."""

    def __init__(self, viewer: Viewer, tenant: Tenant) -> None:
        self._viewer = viewer
        self._tenant = tenant
        self._access = viewer.services.access
        with ui.element("section").classes("card"):
            with ui.element("div").classes("line"):
                ui.label(f"Keys of {tenant.name}").props("role=heading aria-level=2").classes("subtitle grow")
                button("New key", self._making, kind="main")
            self._list = ui.element("div").classes("scroll")
        self._show()

    def _show(self) -> None:
        self._list.clear()
        with self._list, ui.element("table").classes("list"):
            with ui.element("thead"), ui.element("tr"):
                for title in ("Name", "Role", "Key", "Made", "Last used", ""):
                    with ui.element("th"):
                        ui.label(title)
            with ui.element("tbody"):
                for key in self._access.keys_of(self._tenant):
                    self._row(key)

    def _row(self, key: Key) -> None:
        with ui.element("tr"):
            for text in (key.name, str(key.role), key.mask, clock(key.created), clock(key.last_used)):
                with ui.element("td"):
                    ui.label(text)
            with ui.element("td").classes("num"):
                button("Delete", lambda: self._deleting(key), kind="grave")

    async def _making(self) -> None:
        with ui.dialog() as dialog, ui.card():
            ui.label("New key").props("role=heading aria-level=2").classes("subtitle")
            name = ui.input("Name").props("outlined dense autofocus")
            role = ui.select([str(role) for role in Role], value=str(Role.USER), label="Role").props("outlined dense")
            with ui.element("div").classes("line"):
                ui.button("Make it", on_click=lambda: dialog.submit(True), color=None).props("flat no-caps").classes("act main")
                ui.button("Cancel", on_click=dialog.close, color=None).props("flat no-caps").classes("act")
        if await dialog:
            wanted = name.value.strip()
            if not 1 <= len(wanted) <= LONGEST_NAME:
                raise ConfigError("a key needs a name", remedy=f"Use 1 to {LONGEST_NAME} characters.")
            with self._acting("make a key") as _:
                _, secret = await self._access.create_key(self._tenant, wanted, Role(role.value))
            self._show()
            _tell(secret)
        dialog.delete()

    async def _deleting(self, key: Key) -> None:
        if await confirmed(f"End the key {key.name!r} at once?", "End it"):
            with self._acting("delete a key", key.id):
                await self._access.delete_key(self._access.key_of(self._tenant, key.id))
            self._show()

    def _acting(self, action: str, target: str | None = None) -> Any:
        """Around a change: an admin's of its own tenant, or the operator's of any."""
        principal = self._viewer.principal
        if principal.tenant.id != self._tenant.id:
            principal.require_operator()
        return self._viewer.acting(action, target or self._tenant.id, role=Role.ADMIN)


class Tenants:
    """All tenants."""

    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer
        self._access = viewer.services.access
        with ui.element("section").classes("card"):
            with ui.element("div").classes("line"):
                ui.html("<h2>Tenants</h2>", sanitize=False).classes("grow")
                button("New tenant", self._making)
            self._list = Fragment("tenants.html", tenants=self._rows())
            with ui.element("div").classes("line"):
                names = [tenant.name for tenant in self._access.tenants()]
                self._chosen = ui.select(names, value=names[0], label="Tenant").props("outlined dense").classes("chosen")
                button("Quotas", self._limiting)
                button("Keys", self._listing)
                button("Delete", self._deleting, kind="grave")
        self._keys = ui.element("div")

    def _rows(self) -> list[dict[str, object]]:
        return [
            {"name": one.name, "operator": one.operator, "shares": machine.quotas(self._viewer.services, one)}
            for one in self._access.tenants()
        ]

    def _show(self, chosen: str | None = None) -> None:
        names = [tenant.name for tenant in self._access.tenants()]
        self._chosen.set_options(names, value=chosen or names[0])
        self._list.show(tenants=self._rows())
        self._keys.clear()

    def _tenant(self) -> Tenant:
        return self._access.tenant(self._chosen.value)

    async def _making(self) -> None:
        name = await asked("The tenant's name", "", "Make it")
        if name is not None:
            check_name(name)
            self._viewer.principal.require_operator()
            with self._viewer.acting("make a tenant", name, role=Role.ADMIN):
                await self._access.create_tenant(name, Quotas.of(self._viewer.services.settings.quotas))
            self._show(name)

    async def _deleting(self) -> None:
        tenant = self._tenant()
        if await confirmed(f"Delete the tenant {tenant.name!r} with its keys?", "Delete"):
            self._viewer.principal.require_operator()
            with self._viewer.acting("delete a tenant", tenant.id, role=Role.ADMIN):
                await self._access.delete_tenant(tenant)
            self._show()

    def _listing(self) -> None:
        self._keys.clear()
        with self._keys:
            KeyTable(self._viewer, self._tenant())

    async def _limiting(self) -> None:
        tenant = self._tenant()
        fields: dict[str, ui.input] = {}
        with ui.dialog() as dialog, ui.card():
            ui.label(f"What {tenant.name} may have at once; empty is without limit").classes("soft")
            for name, label in QUOTAS:
                known = getattr(tenant.quotas, name)
                text = "" if known is None else f"{known}B" if name in ("memory", "storage") else f"{known:g}"
                fields[name] = ui.input(label, value=text).props("outlined dense")
            with ui.element("div").classes("line"):
                ui.button("Set", on_click=lambda: dialog.submit(True), color=None).props("flat no-caps").classes("act main")
                ui.button("Cancel", on_click=dialog.close, color=None).props("flat no-caps").classes("act")
        if await dialog:
            limits: dict[str, Any] = {name: quota_of(name, field.value or "") for name, field in fields.items()}
            quotas = replace(tenant.quotas, **limits)
            self._viewer.principal.require_operator()
            with self._viewer.acting("set quotas", tenant.id, role=Role.ADMIN):
                await self._access.set_quotas(tenant, quotas)
            self._show(tenant.name)
        dialog.delete()


def quota_of(name: str, text: str) -> float | None:
    """What somebody wrote as a quota; None for nothing. Raises `ConfigError` with what would be right."""
    text = text.strip()
    if not text:
        return None
    try:
        value = parse_size(text) if name in ("memory", "storage") else float(text) if name == "cpu" else int(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no quota: {error}", key=name) from error
    if not 0 <= value < 2**60:
        raise ConfigError(f"{text!r} is no quota", key=name, remedy="Write a number from 0 on, or nothing.")
    return value


def _tell(secret: str) -> None:
    with ui.dialog().props("persistent") as dialog, ui.card():
        ui.label("This is the key. It is shown this once and kept nowhere.")
        ui.label(secret).classes("mono secret")
        with ui.element("div").classes("line"):
            button("Copy", lambda: ui.clipboard.write(secret))
            button("I have it", dialog.close, kind="main")
    dialog.on("hide", dialog.delete)
    dialog.open()
