"""Hugging Face's hub, as far as the download of a model and the upload of a dataset need it, on
loopback."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" + "0" * 34


@contextmanager
def serve_model(repo: str, files: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """The address of a hub that has one model, and the paths that it is asked for."""
    asked: list[str] = []

    class Hub(_Answers):
        def do_GET(self) -> None:
            asked.append(self.path)
            name = self.path.rpartition(f"/resolve/{COMMIT}/")[2]
            if self.path.startswith(f"/api/models/{repo}/revision/"):
                siblings = [{"rfilename": file} for file in files]
                about = {"_id": "1", "id": repo, "sha": COMMIT, "siblings": siblings}
                about |= {"private": False, "tags": [], "downloads": 0, "likes": 0}
                self.tell(about)
            elif self.path.startswith(f"/api/models/{repo}/tree/"):  # its library from 1.0 on
                tree = [
                    {"type": "file", "path": file, "size": len(data), "oid": COMMIT}
                    for file, data in files.items()
                ]
                self.tell(tree)
            elif self.path.startswith(f"/{repo}/resolve/") and name in files:
                self.answer(files[name], "application/octet-stream")
            else:
                self.refuse("RepoNotFound")

        do_HEAD = do_GET

    with _listening(Hub) as endpoint:
        yield endpoint, asked


@dataclass
class Pushed:
    """What was uploaded to a stand-in."""

    endpoint: str = ""
    made: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    """Each tag, and the commit that it is of."""


@contextmanager
def take_repository(repo: str, token: str, kind: str = "datasets") -> Iterator[Pushed]:
    """A hub that takes one repository, `datasets` or `models`, from whoever has the token."""
    pushed = Pushed()
    api = f"/api/{kind}/{repo}"
    page = f"datasets/{repo}" if kind == "datasets" else repo

    class Hub(_Answers):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            lines = [json.loads(line) for line in body.splitlines() if line]
            if self.headers.get("Authorization") != f"Bearer {token}":
                self.refuse("", 401)
            elif self.path == "/api/repos/create":
                pushed.made.append(f"{lines[0]['organization']}/{lines[0]['name']}")
                self.tell({"url": f"{pushed.endpoint}/{page}", "name": repo})
            elif self.path == f"{api}/preupload/main":
                files = [
                    {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for file in lines[0]["files"]
                ]
                self.tell({"files": files})
            elif self.path == f"{api}/commit/main":
                values = [line["value"] for line in lines if line["key"] == "file"]
                pushed.files |= {v["path"]: base64.b64decode(v["content"]) for v in values}
                url = f"{pushed.endpoint}/{page}/commit/{COMMIT}"
                self.tell({"success": True, "commitOid": COMMIT, "commitUrl": url})
            elif self.path.startswith(f"{api}/tag/"):
                pushed.tags[lines[0]["tag"]] = self.path.rpartition("/")[2]
                self.tell({})
            else:
                self.refuse("EntryNotFound")

        def do_DELETE(self) -> None:
            self.refuse("RevisionNotFound")

    with _listening(Hub) as pushed.endpoint:
        yield pushed


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def tell(self, value: object) -> None:
        self.answer(json.dumps(value).encode(), "application/json")

    def refuse(self, code: str, status: int = 404) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def _listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
