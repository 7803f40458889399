"""Stands in for Daytona's API: the real package talks to it by HTTP, and its sandboxes are
processes of this machine."""

from __future__ import annotations

import json
import shlex
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.sandboxes import Machine, Sandboxes

KEY = "dtn_right"


class DaytonaCloud:
    """`faults` maps a route, such as `POST sandbox`, to the status and words that it answers
    instead; `calls` has the routes of all calls."""

    def __init__(self, folder: Path) -> None:
        self.sandboxes = Sandboxes(folder, "x-daytona-preview-token")
        self.snapshots: dict[str, str] = {"sim": ""}
        self.faults: dict[str, tuple[int, str]] = {}
        self.calls: list[str] = []
        self.states: list[str] = []
        """States that the next sandboxes report before they have started."""
        self.builds = 0
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            def serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                text = self.rfile.read(length)
                body = json.loads(text) if text else {}
                status, reply = cloud.answer(
                    self.command, self.path, self.headers.get("Authorization", ""), body
                )
                data = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = serve

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/api"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)
        self.sandboxes.close()

    def answer(
        self, method: str, path: str, authorization: str, body: dict[str, Any]
    ) -> tuple[int, Any]:
        """What the API says."""
        parts = urllib.parse.urlsplit(path)
        words = [urllib.parse.unquote(word) for word in parts.path.strip("/").split("/")]
        kind = words[1] if words[0] == "api" and len(words) > 1 else words[0]
        route = f"{method} {kind if kind in ('sandbox', 'snapshots', 'toolbox') else 'other'}"
        self.calls.append(f"{route} {'/'.join(words[2:])}".strip())
        if authorization != f"Bearer {KEY}":
            return 401, _words("Invalid credentials: the key has expired.")
        if route in self.faults:
            status, text = self.faults[route]
            return status, _words(text)
        query = dict(urllib.parse.parse_qsl(parts.query))
        if kind == "snapshots":
            return self._snapshot(words[2:], body)
        if kind == "sandbox":
            return self._sandbox(method, words[2:], query, body)
        if kind == "toolbox":
            return self._toolbox(words[2], words[3:], body)
        return 404, _words("There is no such thing.")

    def _snapshot(self, rest: list[str], body: dict[str, Any]) -> tuple[int, Any]:
        if not rest:
            self.builds += 1
            self.snapshots[body["name"]] = body["buildInfo"]["dockerfileContent"]
            rest = [body["name"]]
        if rest[0] not in self.snapshots:
            return 404, _words(f"Snapshot with name {rest[0]} not found")
        now = "2026-01-01T00:00:00Z"
        sizes = {"size": 1.0, "cpu": 1, "gpu": 0, "mem": 1, "disk": 3}
        return 200, {
            **sizes,
            "id": f"id-{rest[0]}",
            "name": rest[0],
            "general": False,
            "state": "active",
            "entrypoint": None,
            "errorReason": None,
            "createdAt": now,
            "updatedAt": now,
            "lastUsedAt": None,
            "sourceSandboxId": None,
        }

    def _sandbox(
        self, method: str, rest: list[str], query: dict[str, str], body: dict[str, Any]
    ) -> tuple[int, Any]:
        if not rest and method == "POST":
            machine = self.sandboxes.make(body["labels"], **body)
            machine.notes["states"] = list(self.states)
            return 200, self._described(machine)
        if not rest:
            wanted = json.loads(query.get("labels", "{}")).items()
            found = [m for m in self.sandboxes.machines.values() if wanted <= m.tags.items()]
            return 200, {"items": [self._described(m) for m in found], "nextCursor": None}
        machine_of = self.sandboxes.machines.get(rest[0])
        if machine_of is None:
            return 404, _words(f"Sandbox with ID or name {rest[0]} not found")
        if method == "DELETE":
            described = {**self._described(machine_of), "state": "destroyed"}
            self.sandboxes.delete(rest[0])
            return 200, described
        if rest[1:2] == ["ports"]:
            link = {"sandboxId": rest[0], "url": self.sandboxes.url, "token": machine_of.token}
            return 200, link
        return 200, self._described(machine_of)

    def _toolbox(self, ident: str, rest: list[str], body: dict[str, Any]) -> tuple[int, Any]:
        machine = self.sandboxes.machines.get(ident)
        if machine is None:
            return 404, _words("There is no such sandbox.")
        if rest == ["process", "session"]:
            return 201, {}
        if rest[-1] == "exec":
            variables = machine.notes["env"]
            assert isinstance(variables, dict)
            machine.run(shlex.split(body["command"]), variables, self.sandboxes.folder)
            return 202, {"cmdId": "1"}
        assert machine.process is not None
        assert machine.log is not None
        if rest[-1] == "logs":
            text = machine.log.read_text()
            return 200, {"output": text, "stdout": "", "stderr": text}
        return 200, {"id": "1", "command": "python3", "exitCode": machine.process.poll()}

    def _described(self, machine: Machine) -> dict[str, Any]:
        states = machine.notes.get("states")
        assert isinstance(states, list)
        return {
            "id": machine.ident,
            "organizationId": "org",
            "name": machine.ident,
            "user": "daytona",
            "env": {},
            "labels": machine.tags,
            "public": bool(machine.notes.get("public")),
            "networkBlockAll": False,
            "kvm": False,
            "target": machine.notes.get("target") or "us",
            "cpu": 1,
            "gpu": 0,
            "memory": 1,
            "disk": 3,
            "state": states.pop(0) if states else "started",
            "createdAt": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "toolboxProxyUrl": f"{self.url.removesuffix('/api')}/api/toolbox",
        }


def _words(text: str) -> dict[str, Any]:
    return {"message": text, "error": text}
