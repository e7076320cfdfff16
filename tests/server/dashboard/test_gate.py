"""Who gets in, and what a session may do: asked over HTTP, as an attacker would."""

from __future__ import annotations

import httpx
import pytest
from tests.server.conftest import RunningServer
from tests.server.dashboard.conftest import signed_in

from agentenv.server.access import Role
from agentenv.server.dashboard.sessions import COOKIE

HTML = {"Accept": "text/html"}
PAGES = (
    "/",
    "/templates",
    "/runs",
    "/keys",
    "/compare?runs=quick,slow",
    "/sandboxes/none",
    "/sandboxes/none/file?path=/etc/passwd",
    "/runs/quick/files/status.json",
)


def started(server: RunningServer, key: str) -> str:
    with server.client(key) as client:
        answer = client.post("/sandboxes", json={"templateID": "base", "timeout": 600})
        answer.raise_for_status()
        return str(answer.json()["sandboxID"])


@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_shown_without_a_session(viewed: RunningServer, path: str) -> None:
    answer = httpx.get(f"{viewed.url}/dashboard{path}", timeout=60)
    assert answer.status_code == 401
    asked_by_a_browser = httpx.get(f"{viewed.url}/dashboard{path}", headers=HTML)
    assert asked_by_a_browser.status_code == 303
    assert asked_by_a_browser.headers["location"].startswith("/dashboard/login?next=%2F")


def test_the_root_leads_to_it(viewed: RunningServer) -> None:
    assert httpx.get(f"{viewed.url}/").headers["location"] == "/dashboard/"


def test_a_wrong_key_is_refused_and_noted(viewed: RunningServer) -> None:
    answer = httpx.post(f"{viewed.url}/dashboard/login", data={"key": "e2b_wrong", "next": "/"})
    assert answer.status_code == 401
    assert "this API key is not known here" in answer.text
    assert COOKIE not in answer.cookies
    latest = viewed.wait(viewed.access.audit.entries(limit=1))[0]
    assert (latest.action, latest.status) == ("dashboard: sign in", 401)


def test_the_cookie_keeps_no_key_and_is_kept_from_scripts_and_other_sites(viewed: RunningServer) -> None:
    answer = httpx.post(f"{viewed.url}/dashboard/login", data={"key": viewed.key, "next": "/templates"})
    cookie = answer.headers["set-cookie"]
    assert answer.headers["location"] == "/dashboard/templates"
    assert viewed.key not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/dashboard"} <= {part.strip() for part in cookie.split(";")}


@pytest.mark.parametrize("where", ["//evil.example", "https://evil.example/", "/\\evil.example", "/logout", ""])
def test_signing_in_leads_nowhere_else(viewed: RunningServer, where: str) -> None:
    answer = httpx.post(f"{viewed.url}/dashboard/login", data={"key": viewed.key, "next": where})
    assert answer.headers["location"] == "/dashboard/"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://8000-abc.localhost:1"])
def test_pages_of_other_origins_can_do_nothing(viewed: RunningServer, origin: str) -> None:
    with signed_in(viewed, viewed.key) as client:
        sandbox = started(viewed, viewed.key)
        answer = client.put(f"/sandboxes/{sandbox}/file?path=/tmp/x", content=b"x", headers={"Origin": origin})
        assert answer.status_code == 403
        assert client.post("/logout", headers={"Origin": origin}).status_code == 403


def test_a_page_says_what_browsers_may_load_for_it(viewed: RunningServer) -> None:
    headers = httpx.get(f"{viewed.url}/dashboard/login").headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_files_go_in_and_out(viewed: RunningServer) -> None:
    sandbox = started(viewed, viewed.key)
    content = bytes(range(256)) * 10_000
    with signed_in(viewed, viewed.key) as client:
        sent = client.put(f"/sandboxes/{sandbox}/file", params={"path": "/tmp/a file"}, content=content)
        assert sent.json() == {"path": "/tmp/a file", "size": len(content)}
        fetched = client.get(f"/sandboxes/{sandbox}/file", params={"path": "/tmp/a file"})
        assert fetched.content == content
        assert fetched.headers["content-disposition"] == "attachment; filename*=UTF-8''a%20file"
        missing = client.get(f"/sandboxes/{sandbox}/file", params={"path": "/tmp/none"})
        assert missing.status_code == 400
        assert "/tmp/none" in missing.json()["message"]


def test_who_may_only_read_reads_only(viewed: RunningServer) -> None:
    _, [user, reader] = viewed.new_tenant("readers", Role.USER, Role.READ_ONLY)
    sandbox = started(viewed, user)
    with signed_in(viewed, reader) as client:
        assert client.put(f"/sandboxes/{sandbox}/file?path=/tmp/x", content=b"x").status_code == 403
        assert client.get(f"/sandboxes/{sandbox}/file?path=/etc/hostname").status_code == 200
        page = client.get(f"/sandboxes/{sandbox}", headers=HTML).text
        assert "Processes" in page
        assert "Terminal" not in page
        assert "Kill" not in page


def test_what_is_another_tenants_does_not_exist(viewed: RunningServer) -> None:
    _, [key] = viewed.new_tenant("others", Role.ADMIN)
    sandbox = started(viewed, viewed.key)
    with signed_in(viewed, key) as client:
        assert client.get(f"/sandboxes/{sandbox}/file?path=/etc/hostname").status_code == 404
        assert client.put(f"/sandboxes/{sandbox}/file?path=/tmp/x", content=b"x").status_code == 404
        assert "there is no sandbox" in client.get(f"/sandboxes/{sandbox}", headers=HTML).text
        overview = client.get("/", headers=HTML).text
        assert sandbox not in overview
        assert "This server" not in overview
        assert "this is for the operator" in client.get("/runs", headers=HTML).text
        assert client.get("/runs/quick/files/status.json").status_code == 403
        assert "New tenant" not in client.get("/keys", headers=HTML).text


def test_artefacts_are_those_of_runs_only(viewed: RunningServer) -> None:
    with signed_in(viewed, viewed.key) as client:
        assert client.get("/runs/quick/files/result.json").json() == {"eval_return": 9.5}
        for path in ("/runs/quick/files/..%2Fslow%2Fstatus.json", "/runs/..%2Fruns/files/x", "/runs/quick/files/none"):
            assert client.get(path).status_code == 404


def test_a_session_ends_with_signing_out_and_with_its_key(viewed: RunningServer) -> None:
    tenant, [key] = viewed.new_tenant("leaving", Role.USER)
    with signed_in(viewed, key) as client, signed_in(viewed, key) as other:
        stolen = dict(client.cookies)
        assert client.post("/logout", headers={"Origin": viewed.url}).status_code == 303
        with httpx.Client(base_url=f"{viewed.url}/dashboard", cookies=stolen) as thief:
            assert thief.get("/keys").status_code == 401
        assert other.get("/keys", headers=HTML).status_code == 200
        viewed.wait(viewed.access.delete_key(viewed.access.keys_of(tenant)[0]))
        assert other.get("/keys").status_code == 401
