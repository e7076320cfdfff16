"""Takes the pictures of docs/dashboard.md: `python -m tests.server.dashboard.pictures docs/images`, in a clone, as root or not."""

from __future__ import annotations

import io
import math
import random
import sys
import tempfile
from pathlib import Path

from PIL import Image
from selenium.webdriver.common.keys import Keys
from tests.server.conftest import RunningServer, ServerThread
from tests.server.dashboard.browser import Browser, browser

from agentenv.monitoring import RunWriter
from agentenv.server.settings import load_settings

COLOURS = 256
PHONE = (360, 740)


def main(target: Path) -> None:
    """All of them, from a server that is made for it."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        _train(home / "runs")
        settings = load_settings(environment={}, flags={"port": 0, "runs": str(home / "runs"), "history.interval": 0.2})
        thread = ServerThread(settings, home / "home")
        server = thread.start()
        try:
            with browser(server.url) as window:
                _walk(server, window, target)
        finally:
            thread.stop()


def _walk(server: RunningServer, window: Browser, target: Path) -> None:
    with server.client() as client:
        for lane in range(12):
            body = {"templateID": "base", "timeout": 3600, "metadata": {"run": "ppo-7", "lane": str(lane)}}
            client.post("/sandboxes", json=body).raise_for_status()
        chosen = client.get("/v2/sandboxes").json()[3]["sandboxID"]
        client.post(f"/sandboxes/{client.get('/v2/sandboxes').json()[1]['sandboxID']}/pause").raise_for_status()
        client.post(f"/sandboxes/{chosen}/snapshots", json={"name": "warm"}).raise_for_status()
        client.post(f"/sandboxes/{chosen}/fork", json={"count": 2, "timeout": 3600}).raise_for_status()
    handle = server.wait(server.fleet.running(chosen))
    server.wait(handle.commands.run("for i in 1 2 3; do (timeout 60 sh -c 'while :; do sleep 0.01; done' &) ; done"))
    window.sign_in(server.key)
    window.find(".sandboxes a")
    _keep(window, target / "dashboard-overview.png")
    window.open(f"/sandboxes/{chosen}")
    window.find(".chart svg path")
    window.wait(lambda _: len(server.wait(server.fleet.samples(server.tenant, chosen))) > 15 or None, "enough samples")
    _keep(window, target / "dashboard-sandbox.png")
    window.click(".q-tab", "Snapshots")
    window.find(".tree", "warm")
    window.prefer("dark")
    window.click(".q-tab", "Terminal")
    window.find(".xterm", "$")
    window.click(".xterm")
    window.type("uname -s; nproc; python3 -c 'print(6 * 7)'" + Keys.ENTER)
    window.find(".xterm", "42")
    _keep(window, target / "dashboard-terminal.png")
    window.prefer("")
    window.open("/compare?runs=first,second")
    window.find(".chart svg path")
    _keep(window, target / "dashboard-compare.png")
    window.resize(*PHONE)
    window.open("/")
    window.find(".sandboxes a")
    _keep(window, target / "dashboard-phone.png")


def _train(directory: Path) -> None:
    chance = random.Random(0)
    for name, rate, pace in (("first", 0.0003, 60), ("second", 0.001, 100)):
        with RunWriter.create(directory, run_id=name, max_steps=100_000) as writer:
            training = {"algorithm": "PPO", "learning_rate": rate}
            writer.write_manifest({"config": {"environment": {"name": "basic_rl_env"}, "training": training}})
            for row in range(400):
                value = 10 * (1 - math.exp(-row / pace)) + chance.random()
                writer.log(row * 250, return_mean=value, loss=math.exp(-row / pace) + chance.random() / 20, episodes=row * 8)


def _keep(window: Browser, path: Path) -> None:
    """A picture with few colours: the pages have no more."""
    picture = Image.open(io.BytesIO(window.driver.get_screenshot_as_png())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
