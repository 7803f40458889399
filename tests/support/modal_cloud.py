"""Stands in for Modal's servers: the real package talks to it by gRPC, and its sandboxes are
processes of this machine."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from google.protobuf import empty_pb2
from grpclib import GRPCError, Status
from grpclib.server import Server, Stream
from modal_proto import api_pb2
from modal_proto.api_grpc import ModalClientBase

from support.sandboxes import Machine, Sandboxes

TOKEN = ("ak-right", "as-right")


class ModalCloud:
    """`faults` maps a call's name to what it answers instead; `calls` has all names."""

    def __init__(self, folder: Path) -> None:
        self.sandboxes = Sandboxes(folder, "Authorization", "Bearer ")
        self.images = {"main/sim:latest": "im-1", "sim:latest": "im-1", "sim": "im-1"}
        self.faults: dict[str, tuple[Status, str]] = {}
        self.calls: list[str] = []
        self.built: list[str] = []
        self.url_scheme = "https"
        self._secrets: dict[str, dict[str, str]] = {}
        self._loop = asyncio.new_event_loop()
        self._server: Server | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        is_up = threading.Event()
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(is_up), self._loop)
        assert is_up.wait(30)

    def close(self) -> None:
        async def end() -> None:
            assert self._server is not None
            self._server.close()
            await self._server.wait_closed()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()
        self.sandboxes.close()

    def _run(self) -> None:
        self._loop.run_forever()

    async def _listen(self, is_up: threading.Event) -> None:
        self._server = Server([_Service(self._answer)])
        await self._server.start("127.0.0.1", 0)
        self.server_url = f"http://127.0.0.1:{self._server._server.sockets[0].getsockname()[1]}"
        is_up.set()

    def _answer(self, name: str, request: Any, metadata: Any) -> Any:
        self.calls.append(name)
        if (metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret")) != TOKEN:
            raise GRPCError(Status.UNAUTHENTICATED, "Token has expired.")
        if name in self.faults:
            raise GRPCError(*self.faults[name])
        if name.startswith("Sandbox"):
            name = name.removesuffix("V2")
        return getattr(self, f"_{name}", _unknown)(request)

    def _AuthTokenGet(self, _: Any) -> Any:
        body = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + 900}).encode()).decode()
        return api_pb2.AuthTokenGetResponse(token=f"x.{body.rstrip('=')}.x")

    def _AppGetOrCreate(self, request: Any) -> Any:
        return api_pb2.AppGetOrCreateResponse(app_id=f"ap-{request.app_name}")

    def _EnvironmentGetOrCreate(self, _: Any) -> Any:
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api_pb2.EnvironmentMetadata(name="main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)

    def _ImageGetByTag(self, request: Any) -> Any:
        if request.tag not in self.images:
            raise GRPCError(Status.NOT_FOUND, f"No image named '{request.tag}'")
        return api_pb2.ImageGetByTagResponse(image_id=self.images[request.tag])

    def _ImageGetOrCreate(self, request: Any) -> Any:
        commands = "\n".join(request.image.dockerfile_commands)
        if commands not in self.built:
            self.built.append(commands)
        done = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
        number = self.built.index(commands)
        return api_pb2.ImageGetOrCreateResponse(image_id=f"im-built{number}", result=done)

    def _SecretGetOrCreate(self, request: Any) -> Any:
        ident = f"st-{len(self._secrets)}"
        self._secrets[ident] = dict(request.env_dict)
        return api_pb2.SecretGetOrCreateResponse(secret_id=ident)

    def _SandboxCreate(self, request: Any) -> Any:
        definition, variables = request.definition, {}
        if isinstance(request, api_pb2.SandboxCreateV2Request):
            for source in request.secret_sources:
                variables.update(dict(source.env.contents))
        for ident in definition.secret_ids:
            variables.update(self._secrets[ident])
        assert not definition.open_ports.ports  # Nothing but the connect token leads in.
        tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        machine = self.sandboxes.make(tags, definition=definition, app=request.app_id)
        machine.run(list(definition.entrypoint_args), variables, self.sandboxes.folder)
        if isinstance(request, api_pb2.SandboxCreateV2Request):
            return api_pb2.SandboxCreateV2Response(sandbox_id=machine.ident, task_id="ta-1")
        return api_pb2.SandboxCreateResponse(sandbox_id=machine.ident)

    def _SandboxGetTaskId(self, _: Any) -> Any:
        return api_pb2.SandboxGetTaskIdResponse(task_id="ta-1")

    def _SandboxCreateConnectToken(self, request: Any) -> Any:
        machine = self._find(request.sandbox_id)
        url = self.sandboxes.url.replace("https", self.url_scheme)
        return api_pb2.SandboxCreateConnectTokenResponse(url=url, token=machine.token)

    def _SandboxWait(self, request: Any) -> Any:
        machine, result = self._find(request.sandbox_id), api_pb2.GenericResult
        assert machine.process is not None
        code = machine.notes.get("code", machine.process.poll())
        if code is None:
            return api_pb2.SandboxWaitResponse()
        if code == 124:
            return api_pb2.SandboxWaitResponse(result=result(status=result.GENERIC_STATUS_TIMEOUT))
        ended = result(status=result.GENERIC_STATUS_FAILURE, exitcode=code % 256)
        return api_pb2.SandboxWaitResponse(result=ended)

    def _SandboxTerminate(self, request: Any) -> Any:
        if not self.sandboxes.delete(request.sandbox_id):
            raise GRPCError(Status.NOT_FOUND, "There is no such sandbox.")
        return api_pb2.SandboxTerminateResponse()

    def _SandboxTagsGet(self, request: Any) -> Any:
        tags = self._find(request.sandbox_id).tags.items()
        listed = [api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in tags]
        return api_pb2.SandboxTagsGetResponse(tags=listed)

    def _SandboxList(self, request: Any) -> Any:
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}.items()
        found = [
            api_pb2.SandboxInfo(id=machine.ident, created_at=machine.made_at)
            for machine in reversed(self.sandboxes.machines.values())  # The newest come first.
            if wanted <= machine.tags.items()
            and request.app_id == machine.notes.get("app", request.app_id)
            and (not request.before_timestamp or machine.made_at < request.before_timestamp)
        ]
        return api_pb2.SandboxListResponse(sandboxes=found)

    def _find(self, ident: str) -> Machine:
        if ident not in self.sandboxes.machines:
            raise GRPCError(Status.NOT_FOUND, "There is no such sandbox.")
        return self.sandboxes.machines[ident]


def _unknown(request: Any) -> Any:
    raise GRPCError(Status.UNIMPLEMENTED, f"{type(request).__name__} is not stood in for.")


class _Service:
    """All calls of Modal's service, answered by one function."""

    def __init__(self, answer: Callable[[str, Any, Any], Any]) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> Callable[[Stream[Any, Any]], Awaitable[None]]:
        if name.startswith("_"):
            raise AttributeError(name)

        async def serve(stream: Stream[Any, Any]) -> None:
            request = await stream.recv_message()
            loop = asyncio.get_running_loop()
            reply = await loop.run_in_executor(None, self._answer, name, request, stream.metadata)
            await stream.send_message(reply if reply is not None else empty_pb2.Empty())

        return serve

    def __mapping__(self) -> Any:
        return ModalClientBase.__mapping__(self)  # type: ignore[arg-type]
