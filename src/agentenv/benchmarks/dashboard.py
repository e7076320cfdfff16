"""How long the dashboard takes in a real browser while a thousand sandboxes run: until they are to be seen, and until a change is."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from agentenv.benchmarks.api import Served, served
from agentenv.benchmarks.row import Row, Scale, Target, machine, percentile
from agentenv.errors import CapabilityError

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

SANDBOXES = 1000
AT_ONCE = 16
LOADS = 10
CHANGES = 20
PATIENCE = 30.0
TRIES = 5
ROW = ".sandboxes tbody a"
WATCH = f"""
addEventListener("DOMContentLoaded", () => {{
  window.seen = {{}};
  new MutationObserver(() => {{
    for (const link of document.querySelectorAll("{ROW}")) {{
      if (window.seen[link.textContent]) continue;
      window.seen[link.textContent] = -1;
      requestAnimationFrame(() => setTimeout(() => {{
        window.seen[link.textContent] = Date.now();
        window.rows ??= performance.now();
      }}));
    }}
  }}).observe(document.body, {{ childList: true, subtree: true, characterData: true }});
}});
"""
"""Notes when each row was painted first: the task after the frame that it was in."""


def run(scale: Scale) -> Iterator[Row]:
    """Two rows: the first paint of the table with nothing cached, and a new sandbox from the API's answer to the screen."""
    count = scale.count(SANDBOXES, 50)
    with served() as server:
        asyncio.run(_fill(server, count))
        with _browser() as driver:
            _sign_in(driver, server)
            loads = [_load(driver, server) for _ in range(scale.count(LOADS, 3))]
            rows, paints = [load[0] for load in loads], [load[1] for load in loads]
            yield _row(f"dashboard-{SANDBOXES}", rows, "the first contentful paint of the same loads", percentile(paints, 0.5))
            changes = [_change(driver, server) for _ in range(scale.count(CHANGES, 5))]
            yield _row(f"dashboard-{SANDBOXES}-update", changes, "", None)


async def _fill(server: Served, count: int) -> None:
    room = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=server.url, headers={"X-API-Key": server.key}, timeout=600) as client:

        async def one(number: int) -> None:
            async with room:
                body = {"templateID": "base", "timeout": 3600, "metadata": {"lane": str(number)}}
                (await client.post("/sandboxes", json=body)).raise_for_status()

        await asyncio.gather(*(one(number) for number in range(count)))


@contextmanager
def _browser() -> Iterator[Chrome]:
    try:
        from selenium import webdriver
    except ModuleNotFoundError as error:
        raise CapabilityError("the benchmark of the dashboard needs selenium.", remedy="Run `pip install selenium`.") from error
    chromium, driver_program = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver_program is None:
        raise CapabilityError("the benchmark of the dashboard needs chromium.", remedy="Run `apt-get install chromium chromium-driver`.")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,800"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(driver_program))
    try:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        yield driver
    finally:
        driver.quit()


def _sign_in(driver: Chrome, server: Served) -> None:
    driver.get(f"{server.url}/dashboard/login")
    field = driver.find_element("css selector", "#key")
    field.send_keys(server.key)
    field.submit()
    _when(driver, "return document.querySelector('header.bar') && true")
    _load(driver, server)


def _load(driver: Chrome, server: Served) -> tuple[float, float]:
    """Milliseconds until the first rows were painted, and until anything was.

    Chromium breaks off what it loads when an interface of this machine comes or goes, as they do when others start sandboxes with a
    network: such a load says nothing, and is repeated.
    """
    for _ in range(TRIES):
        driver.execute_cdp_cmd("Network.clearBrowserCache", {})
        driver.get(f"{server.url}/dashboard/")
        if not _broken_off(driver):
            break
    shown = float(_when(driver, "return window.rows ?? null"))
    paint = _when(driver, "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null")
    return shown, float(paint)


def _broken_off(driver: Chrome) -> bool:
    lines: list[dict[str, str]] = driver.get_log("browser")  # type: ignore[no-untyped-call]
    return any("ERR_NETWORK_CHANGED" in line["message"] for line in lines)


def _change(driver: Chrome, server: Served) -> float:
    """Milliseconds from the API's answer to a creation until the new row was painted."""
    headers = {"X-API-Key": server.key}
    answer = httpx.post(f"{server.url}/sandboxes", json={"templateID": "base", "timeout": 3600}, headers=headers, timeout=60)
    answered = time.time() * 1000
    answer.raise_for_status()
    name = answer.json()["sandboxID"][:8]
    return float(_when(driver, f"return window.seen['{name}'] > 0 ? window.seen['{name}'] : null")) - answered


def _when(driver: Chrome, script: str) -> Any:
    """What a script gives as soon as it gives anything."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, PATIENCE, 0.02).until(lambda _: driver.execute_script(script), f"{script} gave nothing")


def _row(name: str, samples: list[float], reference: str, reference_value: float | None) -> Row:
    target, value = Target("value", "<=", 1000.0), percentile(samples, 0.5)
    met = target.met(value, None)
    return Row(
        name, value, "ms", value, percentile(samples, 0.99), len(samples), reference, reference_value, None, str(target), met, machine()
    )
