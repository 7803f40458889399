"""Hugging Face's hub, as far as the download of a model needs it, on loopback."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" + "0" * 34


@contextmanager
def serve_model(repo: str, files: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """The address of a hub that has one model, and the paths that it is asked for."""
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.path)
            name = self.path.rpartition(f"/resolve/{COMMIT}/")[2]
            if self.path.startswith(f"/api/models/{repo}/revision/"):
                siblings = [{"rfilename": file} for file in files]
                about = {"_id": "1", "id": repo, "sha": COMMIT, "siblings": siblings}
                about |= {"private": False, "tags": [], "downloads": 0, "likes": 0}
                self._answer(json.dumps(about).encode(), "application/json")
            elif self.path.startswith(f"/{repo}/resolve/") and name in files:
                self._answer(files[name], "application/octet-stream")
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        do_HEAD = do_GET

        def _answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
