"""The content of files through /files, in a real sandbox."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import resource
import time
from collections.abc import AsyncIterator
from urllib.parse import urlencode

import httpx
import pytest
from e2b.sandbox.signature import get_signature
from tests.server.envd.rpc import unary
from tests.server.envd.test_filesystem_service import stat

from agentenv.sandbox import AsyncSandbox
from agentenv.server.envd.wire.filesystem_pb2 import ListDirRequest, ListDirResponse

pytestmark = pytest.mark.asyncio(loop_scope="module")

OCTETS = {"content-type": "application/octet-stream"}


async def put(client: httpx.AsyncClient, path: str, content: bytes | AsyncIterator[bytes], **more: str) -> httpx.Response:
    return await client.post("/files", params={"path": path}, content=content, headers=OCTETS | more)


async def get(client: httpx.AsyncClient, path: str, **headers: str) -> httpx.Response:
    return await client.get("/files", params={"path": path}, headers=headers)


async def test_up_and_down(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    content = random.Random(1).randbytes(3_000_001)
    answer = await put(http, "new/dir/data.bin", content)
    assert answer.json() == [{"path": "/home/user/new/dir/data.bin", "name": "data.bin", "type": "file"}]
    info = await sandbox.files.get_info("/home/user/new/dir/data.bin")
    assert (info.owner, info.mode, (await sandbox.files.get_info("/home/user/new")).owner) == ("user", 0o644, "user")
    down = await get(http, "/home/user/new/dir/data.bin")
    assert down.content == content
    assert down.headers["content-length"] == "3000001"
    assert down.headers["content-disposition"] == "inline; filename*=UTF-8''data.bin"


async def test_a_form_writes_all_its_files(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    big = random.Random(2).randbytes(1_000_000)
    files = [
        ("file", ("a.txt", b"one")),
        ("other", ("b", b"not a file for us")),
        ("file", ('/tmp/ä "quoted".bin', big)),
        ("file", ("empty", b"")),
    ]
    answer = await http.post("/files", files=files)
    assert [entry["path"] for entry in answer.json()] == ["/home/user/a.txt", "/tmp/ä %22quoted%22.bin", "/home/user/empty"]
    assert await sandbox.files.read("/tmp/ä %22quoted%22.bin", "bytes") == big
    assert await sandbox.files.read("/home/user/empty") == ""
    twice = await http.post("/files", files=[("file", ("a.txt", b"1")), ("file", ("~/a.txt", b"2"))])
    assert (twice.status_code, "twice" in twice.json()["message"]) == (400, True)
    assert await sandbox.files.read("/home/user/a.txt") == "1"


async def test_files_of_others_change_hands_when_they_are_written(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("/tmp/f", "roots", user="root")
    await http.post("/files", params={"path": "/tmp/f", "username": "ada"}, content=b"adas", headers=OCTETS)
    assert ((await sandbox.files.get_info("/tmp/f")).owner, await sandbox.files.read("/tmp/f")) == ("ada", "adas")


async def test_metadata_stays_with_a_file(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    metadata = {"x-metadata-Purpose": "to be kept", "x-metadata-n": "1"}
    answer = await put(http, "noted", b"1", **metadata)
    if answer.status_code == 501:
        pytest.skip("the backend's files have no attributes of their users'")
    assert answer.json()[0]["metadata"] == {"purpose": "to be kept", "n": "1"}
    await sandbox.commands.run(
        "mv noted moved; cp moved plain; mkdir d; cp --preserve=xattr moved d/copy", cwd="/home/user", user="user", check=True
    )
    assert dict((await stat(http, "moved")).metadata) == {"purpose": "to be kept", "n": "1"}
    listed = await unary(http, "filesystem.Filesystem/ListDir", ListDirRequest(path="~", depth=2), ListDirResponse)
    assert {entry.name for entry in listed.entries if entry.metadata} == {"moved", "copy"}
    await put(http, "moved", b"2")
    assert not (await stat(http, "moved")).metadata
    for wrong in ({"x-metadata-a": "x" * 4096}, {f"x-metadata-{'k' * 250}": ""}, {"x-metadata-a": "\u00fc".encode()}):
        assert (await put(http, "refused", b"", **wrong)).status_code == 400  # type: ignore[arg-type]
    assert not await sandbox.files.exists("/home/user/refused")


async def test_gzip_both_ways(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    content = b"packed " * 300_000
    answer = await put(http, "packed", gzip.compress(content[:700]) + gzip.compress(content[700:]), **{"content-encoding": "gzip"})
    assert answer.status_code == 200
    assert await sandbox.files.read("/home/user/packed", "bytes") == content
    async with http.stream("GET", "/files", params={"path": "packed"}, headers={"accept-encoding": "gzip"}) as response:
        raw = b"".join([piece async for piece in response.aiter_raw()])
        assert response.headers["content-encoding"] == "gzip"
    assert gzip.decompress(raw) == content
    assert "content-encoding" not in (await get(http, "packed", **{"accept-encoding": "gzip, deflate"})).headers
    assert (await get(http, "packed", **{"accept-encoding": "br, identity;q=0"})).status_code == 406
    for body in (b"no gzip", gzip.compress(content)[:-9]):
        broken = await put(http, "broken", body, **{"content-encoding": "gzip"})
        assert (broken.status_code, await sandbox.files.exists("/home/user/broken")) == (400, False)


async def test_parts_of_a_file(http: httpx.AsyncClient) -> None:
    await put(http, "digits", b"0123456789")
    for wish, status, content in (
        ("bytes=2-4", 206, b"234"),
        ("bytes=7-", 206, b"789"),
        ("bytes=-3", 206, b"789"),
        ("lines=1-2", 200, b"0123456789"),
    ):
        answer = await get(http, "digits", range=wish)
        assert (answer.status_code, answer.content) == (status, content)
    assert (await get(http, "digits", range="bytes=2-4")).headers["content-range"] == "bytes 2-4/10"
    beyond = await get(http, "digits", range="bytes=10-")
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */10")


async def test_files_that_have_no_size_of_their_own(http: httpx.AsyncClient) -> None:
    assert b"cpu" in (await get(http, "/proc/stat")).content
    await put(http, "empty", b"")
    assert (await get(http, "empty")).content == b""


async def test_what_cannot_be_had_says_why(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    for answer, status, word in (
        (await get(http, "nothing"), 404, "path '/home/user/nothing' does not exist"),
        (await get(http, "/etc"), 400, "is a directory"),
        (await put(http, "/etc", b""), 400, "is a directory"),
        (await put(http, "/etc/passwd/x", b""), 400, "Not a directory"),
        (await http.post("/files", content=b"x", headers=OCTETS), 400, "`path` is missing"),
        (await http.post("/files", content=b"x", headers={"content-type": "text/plain"}), 400, "multipart/form-data"),
        (await http.post("/files", content=b"--x\r\n", headers={"content-type": "multipart/form-data; boundary=x"}), 400, "last boundary"),
        (await http.post("/files", content=b"nonsense", headers={"content-type": "multipart/form-data; boundary=x"}), 400, "no multipart"),
        (await http.post("/files", content=b"", headers={"content-type": "multipart/form-data"}), 400, "boundary"),
        (await put(http, "x", b"", **{"content-encoding": "br"}), 400, "Content-Encoding"),
        (await http.get("/files", params={"path": "x", "username": "No User"}), 401, "no user"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (status, status), answer.text
        assert word in answer.json()["message"]


async def test_a_broken_off_upload_leaves_the_old_file(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    await put(http, "kept", b"old")

    async def broken() -> AsyncIterator[bytes]:
        yield b"new" * 100_000
        raise OSError("the client dies")

    with pytest.raises(OSError, match="the client dies"):
        await put(http, "kept", broken())
    while any(entry.name.startswith(".agentenv-") for entry in await sandbox.files.list("/home/user")):
        assert await sandbox.files.read("/home/user/kept") == "old"
    assert await sandbox.files.read("/home/user/kept") == "old"


async def test_a_full_disk_is_507(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    answer = await put(http, "/dev/full", b"x" * 4096)
    assert (answer.status_code, "out of storage" in answer.json()["message"]) == (507, True)


async def test_large_files_take_no_memory(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    piece, digest = os.urandom(1 << 20), hashlib.sha256()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(48):
            digest.update(piece)
            yield piece

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (await put(http, "large", pieces())).raise_for_status()
    back = hashlib.sha256()
    async with http.stream("GET", "/files", params={"path": "large"}) as response:
        async for part in response.aiter_raw():
            back.update(part)
    assert back.digest() == digest.digest()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 24 << 10


async def test_signed_links(secured: httpx.AsyncClient) -> None:
    def link(operation: str, path: str, user: str | None = None, expires: int | None = None, /, **changes: str) -> str:
        signed = get_signature(path, operation, user, "secret", expires)  # type: ignore[arg-type]
        query = {"path": path, "signature": signed["signature"], "username": user, "signature_expiration": signed["expiration"], **changes}
        return "/files?" + urlencode({name: value for name, value in query.items() if value is not None})

    up = await secured.post(link("write", "signed.txt"), content=b"signed", headers=OCTETS)
    assert up.status_code == 200, up.text
    assert (await secured.get(link("read", "signed.txt", None, 60))).content == b"signed"
    assert (await secured.get(link("read", "/home/user/signed.txt", "root"))).content == b"signed"
    assert (await secured.get("/files", params={"path": "signed.txt"}, headers={"x-access-token": "secret"})).content == b"signed"
    for refused in (
        link("write", "signed.txt"),
        link("read", "signed.txt", None, -5),
        link("read", "other", path="signed.txt"),
        link("read", "signed.txt", username="root"),
        link("read", "signed.txt", None, 60, signature_expiration=str(int(time.time()) + 9999)),
        "/files?path=signed.txt",
    ):
        assert (await secured.get(refused)).status_code == 401, refused
    wrong = await secured.get(link("read", "signed.txt"), headers={"x-access-token": "wrong"})
    assert wrong.status_code == 401
    assert (await secured.get(link("read", "signed.txt", signature_expiration="soon"))).status_code == 400
