"""A real browser, spoken to over its driver's own protocol with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DRIVER = "chromedriver"
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage"),
    "--hide-scrollbars",
)
START_SECONDS = 60
KEYS = {
    "Tab": "\ue004",
    "Enter": "\ue007",
    "Shift": "\ue008",
    "Escape": "\ue00c",
    "Space": " ",
    "ArrowLeft": "\ue012",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
    "Home": "\ue011",
}
"""Keys without a character, as WebDriver spells them."""


def missing() -> str | None:
    """Why there is no browser here; None where there is one."""
    if browser() is None:
        return f"no browser to open pages in: none of {', '.join(BROWSERS)} is on the PATH"
    return None if shutil.which(DRIVER) else f"no {DRIVER} on the PATH to drive the browser with"


def browser() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Browser:
    """A session with one window."""

    def __init__(self, port: int, folder: Path) -> None:
        self._port = port
        options = {"binary": browser(), "args": [*FLAGS, f"--user-data-dir={folder}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options}
        wanted["goog:loggingPrefs"] = {"browser": "ALL", "performance": "ALL"}
        answer = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"
        self._leave_the_browsers_own_first_page()

    def _leave_the_browsers_own_first_page(self) -> None:
        """It would go on loading parts of itself, into the log of whatever is opened first."""
        self._ask("POST", f"{self._session}/url", {"url": "about:blank"})

    def _ask(self, verb: str, path: str, body: dict[str, Any] | None = None) -> Any:
        link = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            link.request(verb, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            value = json.loads(link.getresponse().read())["value"]
        finally:
            link.close()
        if isinstance(value, dict) and "error" in value:
            raise AssertionError(f"{value['error']}: {value['message']}")
        return value

    def open(self, page: Path | str) -> None:
        """Open a file or an address, all of it: on a busy machine the driver has said that it is there before its last
        part was."""
        address = page if isinstance(page, str) else page.resolve().as_uri()
        self._ask("POST", f"{self._session}/url", {"url": address})
        end = time.monotonic() + START_SECONDS
        while self.run("return [location.href, document.readyState]") != [address, "complete"]:
            assert time.monotonic() < end, f"{address} is not there after {START_SECONDS} seconds"
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """What a function body returns in the page."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def type(self, *keys: str) -> None:
        """Press and release keys, one after the other; all of them at once where they are joined with ``+``."""
        acts = []
        for pressed in keys:
            codes = [KEYS.get(key, key) for key in (pressed.split("+") if len(pressed) > 1 else [pressed])]
            acts += [{"type": "keyDown", "value": code} for code in codes]
            acts += [{"type": "keyUp", "value": code} for code in reversed(codes)]
        body = {"actions": [{"type": "key", "id": "keyboard", "actions": acts}]}
        self._ask("POST", f"{self._session}/actions", body)

    def until(self, script: str, seconds: float = 30) -> Any:
        """What a function body returns as soon as that is true."""
        end = time.monotonic() + seconds
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"not true after {seconds} seconds: {script}"
            time.sleep(0.02)
        return found

    def tell(self, command: str, **parameters: Any) -> Any:
        """A command of the browser's own protocol."""
        body = {"cmd": command, "params": parameters}
        return self._ask("POST", f"{self._session}/goog/cdp/execute", body)

    def log(self, kind: str) -> list[dict[str, Any]]:
        """What was logged since it was last asked for."""
        found: list[dict[str, Any]] = self._ask("POST", f"{self._session}/se/log", {"type": kind})
        return found

    def size(self, width: int, height: int = 800) -> None:
        self.tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name: str) -> None:
        self.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def close(self) -> None:
        self._ask("DELETE", self._session)


@contextmanager
def opened(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in a folder; it and its driver are ended in the end."""
    driver = shutil.which(DRIVER)
    assert driver is not None, "asked for by `missing` before"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen([driver, f"--port={port}"], stdout=log, stderr=log)
        try:
            _wait(port)
            found = Browser(port, folder / "profile")
            try:
                yield found
            finally:
                with suppress(OSError, AssertionError):
                    found.close()
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
