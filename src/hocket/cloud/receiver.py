"""The first program at a far end to which no file can be given: it takes the code over the port on
which it then listens as a worker, from whoever has the key.

The text of RECEIVER is all that travels on a command line. It needs nothing but Python.
"""

from __future__ import annotations

import http.client
import ssl
import urllib.parse
from collections.abc import Mapping

from hocket.errors import WorkerFailed
from hocket.workers.remote.archive import CHECKS, code_archive
from hocket.workers.remote.websocket import KEY_HEADER, KEY_VARIABLE

LISTEN_VARIABLE = "HOCKET_LISTEN"
"""The environment variable by which the far end learns where to listen: HOST:PORT."""
_OURS = "X-Hocket"
"""A header of every answer of the receiver: what has none is of a proxy in front of it."""
_SEND_S = 60.0
"""Seconds for the code to travel."""

_TEXT = """\
import hmac, http.server, io, os, sys, time, zipfile

class Receiver(http.server.BaseHTTPRequestHandler):
    timeout = 30
    def is_refused(self):
        key = os.environ[KEY_VARIABLE]
        if not hmac.compare_digest(self.headers.get(KEY_HEADER, "").encode(), key.encode()):
            self.say(401, "The key is missing or wrong.")
            return True
        try:
            exec(CHECKS)
        except SystemExit as exc:
            self.say(422, str(exc))
            return True
        return False
    def do_GET(self):
        if not self.is_refused():
            self.say(200, "")
    def do_POST(self):
        if self.is_refused():
            return
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 < length < 1 << 26:
            return self.say(413, "The code is missing or too long.")
        self.server.code = self.rfile.read(length)
        self.say(200, "")
    def say(self, status, text):
        body = text.encode()
        self.send_response(status)
        self.send_header(OURS, "1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass

host, _, port = os.environ[LISTEN_VARIABLE].rpartition(":")
end = time.monotonic() + 600
with http.server.HTTPServer((host, int(port)), Receiver) as server:
    server.code, server.timeout = None, 10
    while server.code is None and time.monotonic() < end:
        server.handle_request()
if server.code is None:
    sys.exit("Nobody brought code.")
HOCKET_CODE = io.BytesIO(server.code)
sys.argv = ["hocket-worker", "ws", os.environ[LISTEN_VARIABLE]]
exec(zipfile.ZipFile(HOCKET_CODE).read("__main__.py"))
"""
_NAMES = {
    "KEY_VARIABLE": KEY_VARIABLE,
    "KEY_HEADER": KEY_HEADER,
    "LISTEN_VARIABLE": LISTEN_VARIABLE,
    "OURS": _OURS,
    "CHECKS": CHECKS,
}
RECEIVER = "".join(f"{name} = {value!r}\n" for name, value in _NAMES.items()) + _TEXT
"""A program for `python -c`."""


def send_code(url: str, key: str, headers: Mapping[str, str]) -> None:
    """Give the code to a receiver behind an https URL. Raises WorkerFailed where it refuses the
    code, OSError where nobody answers yet."""
    wanted = {**headers, KEY_HEADER: key}
    _ask(url, "GET", None, wanted)  # Who refuses says so to this, before the code has come.
    _ask(url, "POST", code_archive(), wanted)


def _ask(url: str, method: str, body: bytes | None, headers: Mapping[str, str]) -> None:
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port, timeout=_SEND_S, context=ssl.create_default_context()
    )
    path = f"{parts.path or '/'}?{parts.query}".rstrip("?")
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        text = answer.read(3000).decode("utf-8", "replace").strip()
    except http.client.HTTPException as exc:
        raise ConnectionError(f"{url} broke off: {exc!r}") from exc
    finally:
        connection.close()
    if not answer.headers.get(_OURS):
        raise ConnectionError(f"{url} answered {answer.status}: {text[:300]}")
    if answer.status != 200:
        raise WorkerFailed(text)
