"""A headless Chromium, driven over its own protocol: what a page fetches, says and looks like."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
_DEADLINE_S = 60.0
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars "
    "--no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --autoplay-policy=no-user-gesture-required --remote-debugging-port=0"
)


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, ended in the end."""
    assert BINARY is not None
    profile.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [BINARY, *_FLAGS.split(), f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
    )
    try:
        yield Browser(_port(profile / "DevToolsActivePort", process))
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline:
        text = file.read_text() if file.exists() else ""
        if "\n" in text:
            return int(text.splitlines()[0])
        assert process.poll() is None, "Chromium ended at once."
        time.sleep(0.05)
    raise TimeoutError("Chromium does not say where it listens.")


class Browser:
    def __init__(self, port: int) -> None:
        self._port = port

    @contextlib.contextmanager
    def page(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Page]:
        """A tab of a certain size, in light or dark."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/json/new?about:blank", method="PUT"
        )
        with urllib.request.urlopen(request, timeout=_DEADLINE_S) as answer:
            address = json.load(answer)["webSocketDebuggerUrl"]
        with connect(address, max_size=None, compression=None, ping_interval=None) as socket:
            page = Page(socket, width, height)
            page.prepare(dark=dark)
            yield page
            page.call("Page.close")


class Page:
    """One tab. `requests` are the addresses it asked for, `complaints` what its console said."""

    def __init__(self, socket: ClientConnection, width: int, height: int) -> None:
        self._socket = socket
        self._size = (width, height)
        self._ids = itertools.count(1)
        self._loaded: set[str] = set()
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def prepare(self, *, dark: bool) -> None:
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        self._resize(self._size[1])
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, file: Path) -> None:
        """Go to a file and wait until it is loaded."""
        self.go(file.absolute().as_uri())

    def go(self, address: str) -> None:
        """Go to an address and wait until it is loaded and drawn: pages draw with a frame."""
        loader = self.call("Page.navigate", url=address)["loaderId"]
        deadline = time.monotonic() + _DEADLINE_S
        while loader not in self._loaded:
            self._listen(deadline)
        self.ask("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def ask(self, expression: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, claim: str) -> Any:
        """Wait until an expression is true; returns its value."""
        deadline = time.monotonic() + _DEADLINE_S
        while not (found := self.ask(claim)):
            assert time.monotonic() < deadline, f"It did not become true: {claim}"
            time.sleep(0.05)
        return found

    def press(self, key: str) -> None:
        """Press and release a key: a letter, or a name such as ArrowLeft."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def screenshot(self, path: Path) -> None:
        """The whole page, from top to bottom."""
        self._resize(min(12_000, int(self.ask("document.documentElement.scrollHeight"))))
        shot = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            message = self._listen(deadline)
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])

    def _resize(self, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=self._size[0],
            height=height,
            deviceScaleFactor=1,
            mobile=self._size[0] < 600,
        )

    def _listen(self, deadline: float) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(
            self._socket.recv(timeout=max(0.0, deadline - time.monotonic()))
        )
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif message.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(str(params["args"]))
        elif message.get("method") == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif message.get("method") == "Page.lifecycleEvent" and params["name"] == "load":
            self._loaded.add(params["loaderId"])
        return message
