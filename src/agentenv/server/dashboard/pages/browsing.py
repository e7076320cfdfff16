"""The files of a sandbox: walked through, looked at, fetched and sent."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from nicegui import ui
from nicegui.events import GenericEventArguments

from agentenv.sandbox.results import EntryInfo, FileType
from agentenv.server.dashboard.content import running
from agentenv.server.dashboard.pages.frame import ROOT, button, guarded
from agentenv.server.dashboard.rendering import clock, size
from agentenv.server.dashboard.viewer import Viewer

MOST = 500
"""Entries of a directory that are listed."""
LONGEST = 256 << 10
"""Bytes of a file that are shown."""

COLUMNS = (
    ("name", "Name", "left"),
    ("size", "Size", "right"),
    ("permissions", "Mode", "left"),
    ("owner", "Owner", "left"),
    ("modified", "Modified", "right"),
)


class Files:
    """One place in the tree at a time."""

    def __init__(self, viewer: Viewer, sandbox: str, start: str) -> None:
        self._viewer = viewer
        self._id = sandbox
        self._path = start
        with ui.element("section").classes("card"):
            with ui.element("div").classes("line"):
                button("Up", lambda: self.go(str(PurePosixPath(self._path).parent)))
                self._place = ui.input("Directory", value=start).props("outlined dense").classes("grow place")
                self._place.on("keydown.enter", guarded(lambda: self.go(self._place.value)))
                if viewer.acts:
                    self._upload()
            self._told = ui.label().classes("soft")
            self._table = self._make_table()

    async def go(self, path: str) -> None:
        """Lists a directory. Raises `SandboxFileError` and what `content.running` raises; then it stays where it was."""
        handle = await running(self._viewer, self._id)
        entries = sorted(await handle.files.list(path), key=lambda entry: (entry.type is not FileType.DIR, entry.name))
        self._path = path
        self._place.set_value(path)
        self._table.rows = [_row(self._id, entry) for entry in entries[:MOST]]
        told = (
            f"{len(entries):,} entries, the first {MOST} are shown."
            if len(entries) > MOST
            else "This directory is empty."
            if not entries
            else ""
        )
        self._told.set_text(told)
        ui.run_javascript(f"document.querySelectorAll('#sending-{self._table.id}').forEach((it) => (it.dataset.directory = {path!r}))")

    def _make_table(self) -> ui.table:
        table = ui.table(
            columns=[
                {
                    "name": name,
                    "label": label,
                    "field": name,
                    "align": align,
                    "classes": "wide" if name in ("permissions", "owner") else "",
                    "headerClasses": "wide" if name in ("permissions", "owner") else "",
                }
                for name, label, align in (*COLUMNS, ("download", "", "right"))
            ],
            rows=[],
            row_key="path",
            pagination=0,
        ).props("flat dense hide-pagination")
        table.add_slot(
            "body-cell-name",
            """<q-td :props="props"><a href="#" class="mono" @click.prevent="$parent.$emit('entry', props.row)">{{ props.value }}</a>"""
            """<span class="soft" v-if="props.row.target"> → {{ props.row.target }}</span></q-td>""",
        )
        table.add_slot(
            "body-cell-download", """<q-td :props="props"><a v-if="props.row.url" :href="props.row.url" download>Download</a></q-td>"""
        )
        table.on("entry", guarded(self._enter))
        return table

    def _upload(self) -> None:
        """A plain field for files: the browser streams each into the sandbox."""
        button("Upload", lambda: ui.run_javascript(f"document.getElementById('sending-{self._table.id}').click()"))

    def offer(self) -> None:
        """Adds the field, which stands outside of what NiceGUI draws."""
        if not self._viewer.acts:
            return
        target = f"{ROOT}/sandboxes/{self._id}/file"
        ui.add_body_html(f'<input type="file" multiple hidden id="sending-{self._table.id}">')
        ui.run_javascript(
            f"const it = document.getElementById('sending-{self._table.id}');"
            f"it.onchange = () => sendFiles(it, '{target}', (name, told) => emitEvent('sent-{self._table.id}', {{name, told}}));"
        )
        ui.on(f"sent-{self._table.id}", guarded(self._sent))

    async def _sent(self, event: GenericEventArguments) -> None:
        problem = event.args["told"]
        ui.notify(
            f"{event.args['name']}: {problem}" if problem else f"{event.args['name']} is there.", type="negative" if problem else "positive"
        )
        await self.go(self._path)

    async def _enter(self, event: GenericEventArguments) -> None:
        row = event.args
        if row["kind"] == FileType.DIR.value or row["target"]:
            handle = await running(self._viewer, self._id)
            if (await handle.files.get_info(row["path"], follow=True)).type is FileType.DIR:
                await self.go(row["path"])
                return
        await self._look_at(row["path"])

    async def _look_at(self, path: str) -> None:
        handle = await running(self._viewer, self._id)
        content = b""
        async for piece in await handle.files.read(path, "stream"):
            content += piece
            if len(content) > LONGEST:
                break
        with ui.dialog() as dialog, ui.card().style("max-width: min(960px, 92vw); width: 100%"):
            ui.label(path).classes("mono")
            if b"\0" in content[:1024]:
                ui.label("This is no text. Download it to look at it.").classes("empty")
            else:
                cut = f"\n… the first {size(LONGEST)} are shown" if len(content) > LONGEST else ""
                with ui.element("pre").classes("log"):
                    ui.label(content[:LONGEST].decode(errors="replace") + cut)
            button("Close", dialog.close)
        dialog.on("hide", dialog.delete)
        dialog.open()


def _row(sandbox: str, entry: EntryInfo) -> dict[str, Any]:
    regular = entry.type is FileType.FILE
    return {
        "path": entry.path,
        "name": entry.name + ("/" if entry.type is FileType.DIR else ""),
        "kind": entry.type.value,
        "target": entry.symlink_target or "",
        "size": size(entry.size) if regular else "",
        "permissions": entry.permissions,
        "owner": entry.owner,
        "modified": clock(entry.modified_time.timestamp()),
        "url": f"{ROOT}/sandboxes/{sandbox}/file?path={quote(entry.path)}" if regular else "",
    }
