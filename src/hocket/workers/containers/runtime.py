"""Workers in containers: a zygote in each, whose socket is on a mount, and memory shared with it.

Nothing of hocket's is in the image. The package and msgpack are mounted, and loaded by path; there
is no network; the engine passes stream, control page and log through the wall as it passes them to
a zygote beside it, so that a lane in a container is as fast as any other. When the engine's process
ends, however it ends, the socket does too, and the container with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import msgpack

import hocket
from hocket.core import plugins
from hocket.core.contracts.env import Bridge
from hocket.core.contracts.link import Link
from hocket.core.contracts.runtime import Usability, WorkerSpec
from hocket.errors import HocketError, UsageError, WorkerFailed
from hocket.system.child import Child
from hocket.system.scratch import ScratchFolder
from hocket.system.waits import awaiting
from hocket.workers.containers.command import Command, build_once, container_name
from hocket.workers.links.files import LeftFolder
from hocket.workers.links.guard import Guard
from hocket.workers.local import bootstrap
from hocket.workers.local.runtime import ONE_THREAD, LocalRuntime, ZygoteProcess, start_worker
from hocket.workers.local.zygote import FORK, KILL, REQUEST
from hocket.workers.variables import Variables

_CODE = "/opt/hocket"
_LINK = "/run/hocket"
_BRIDGE = "bridge"
_FILES = "files"
"""The folder beside the socket that a worker's sinks write to: what a dead one wrote is there."""
_END_S = 5.0
"""Seconds for a container to end by itself once its socket has."""
_LOOK_S = 0.1
_NO_GPU = ("unresolvable CDI devices", "could not select device driver")
"""What Podman and Docker say where GPUs are asked for that are not there."""
_MEANINGS = {
    126: " The interpreter of the image cannot be run (--runtime.python).",
    127: " The image has no such interpreter (--runtime.python).",
    137: " It was killed, perhaps for its memory (--runtime.memory).",
}
"""What codes of Podman and Docker mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerConfig(Variables):
    """What a container is given. It has no network, and sees only files of the image and mounts."""

    dockerfile: str = ""
    """Build the image from this Dockerfile (or the folder that holds it), instead of naming one. It
    is built once for the same context."""
    python: str = "python3"
    """The interpreter in the image, 3.10 or later, with numpy, gymnasium and the simulator."""
    gpus: str = ""
    """all, or the numbers of GPUs: 0,1."""
    memory: str = ""
    """Most memory of each container: 4g."""
    cpus: float | None = None
    """Most cores of each container."""
    mounts: tuple[str, ...] = ()
    """Folders of this machine to see in the container: /data:/data:ro."""
    isolate: bool = False
    """A fresh container for every episode, instead of one for each lane."""


class ContainerRuntime:
    """Starts a container for each worker; serves one fleet at a time."""

    Config = ContainerConfig
    commands: ClassVar[tuple[str, ...]]

    def __init__(self, argument: str = "", config: ContainerConfig | None = None) -> None:
        self._image = argument
        self._config = config or ContainerConfig()
        if bool(argument) == bool(self._config.dockerfile):
            raise UsageError(
                f"Name an image, as in --runtime {self.commands[0]}:IMAGE, or give "
                f"--runtime.dockerfile PATH, and not both."
            )
        self.isolates = self._config.isolate
        self._asking = threading.Lock()  # one thread asks for command and image, others wait
        self._ready: tuple[Command, str] | None = None
        self._containers: list[Container] = []
        self._next = 0
        self._beside = LocalRuntime()  # of workers that stay outside

    @classmethod
    def examine(cls) -> Usability:
        """Look for the command, and ask it something."""
        try:
            command = Command.find(cls.commands)
        except WorkerFailed as exc:
            advice = f"apt-get install {cls.commands[-1]}, or start the service of what is there"
            return Usability(is_usable=False, detail=str(exc), advice=advice)
        return Usability(is_usable=True, detail=command.path)

    @property
    def is_preparing(self) -> bool:
        return self._asking.locked()

    def start(self, spec: WorkerSpec) -> Link:
        """Ask for a container with a worker; a thread starts it and waits for it to call."""
        if spec.python is not None:
            raise UsageError("--env-python is of this machine; in a container: --runtime.python.")
        self._containers = [one for one in self._containers if not one.reap()]
        index, self._next = self._next, self._next + 1
        if (bridge := _bridge_of(spec)) is not None:
            bridged = BridgedContainer(self, spec, bridge)
            self._containers.append(bridged)
            bridged.zygote = self._beside.prepare(bridged.spec)
            return start_worker(bridged, bridged.spec, index, index, bridged.end)
        container = Container(self, spec)
        self._containers.append(container)
        guard = Guard(spec, left=container.left)
        link = start_worker(container, spec, 0, index, container.end, guard)
        link.open(spec)
        return link

    def close(self) -> None:
        """End every container. The runtime can be used again."""
        for container in self._containers:
            container.end()
        deadline = time.monotonic() + _END_S
        for container in self._containers:
            container.close(deadline)
        self._containers.clear()
        self._beside.close()

    def ready(self) -> tuple[Command, str]:
        """The command, and the name of the image. Raises WorkerFailed where there is none."""
        with self._asking:
            if self._ready is None:
                command, image = Command.find(self.commands), self._image
                command.sweep()
                if self._config.dockerfile:
                    image = build_once(command, self._config.dockerfile)
                elif not command.has_image(image):
                    tool = os.path.basename(command.path)
                    raise WorkerFailed(
                        f"There is no image {image!r} here. Get it with `{tool} pull {image}`, or "
                        "build one: --runtime.dockerfile PATH (`hocket image` writes one)."
                    )
                self._ready = (command, image)
            return self._ready

    def arguments(self, name: str, link: str, spec: WorkerSpec) -> list[str]:
        """The command line of a container with a worker, whose link is in the folder `link`."""
        package = os.path.dirname(os.path.abspath(hocket.__file__))
        setup = {
            "path": None,
            "package": f"{_CODE}/hocket",
            "msgpack": f"{_CODE}/msgpack",
            "suites": [ref.name for ref in spec.suites.values()],
        }
        program = f"{_CODE}/{bootstrap.__name__.replace('.', '/')}.py"
        code = {package: "hocket", os.path.dirname(os.path.abspath(msgpack.__file__)): "msgpack"}
        words = [self._config.python, program, f"{_LINK}/socket", json.dumps(setup)]
        return self.command_line(name, link, code, words)

    def bridge_arguments(self, name: str, link: str, bridge: Bridge) -> list[str]:
        """The command line of a container with what serves a worker outside."""
        python = bridge.python if self._config.python == ContainerConfig().python else ()
        program = os.path.basename(bridge.program)
        words = [*(python or (self._config.python,)), f"{_CODE}/{program}"]
        words += [f"{_LINK}/{_BRIDGE}", f"{_LINK}/socket"]
        return self.command_line(name, link, {bridge.program: program}, words)

    def command_line(
        self, name: str, link: str, code: Mapping[str, str], program: Sequence[str]
    ) -> list[str]:
        """The command line of a container that runs a program, with code under these names."""
        (command, image), config = self.ready(), self._config
        mounts = [f"{source}:{_CODE}/{name}:ro" for source, name in code.items()]
        mounts += [f"{link}:{_LINK}", *map(_absolute, config.mounts)]
        variables = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", **ONE_THREAD}
        words = [command.path, "run", "--rm", "--name", name, "--label", "hocket=worker"]
        words += ["--network", "none", "--log-driver", "none", "--pull", "never"]
        words += ["--security-opt", "no-new-privileges"]
        for mount in mounts:
            words += ["--volume", mount]
        # Of a secret the command line has the name: the command takes it from its environment.
        told = [f"{key}={value}" for key, value in variables.items()]
        for entry in (*told, *config.env, *config.secrets()):
            words += ["--env", entry]
        if config.memory:
            words += ["--memory", config.memory]
        if config.cpus is not None:
            words += ["--cpus", f"{config.cpus:g}"]
        words += _gpu_words(config.gpus, is_podman=command.is_podman)
        return [*words, "--entrypoint", program[0], image, *program[1:]]


class DockerRuntime(ContainerRuntime):
    """By Docker, or by Podman where Docker is not there."""

    commands = ("docker", "podman")


class PodmanRuntime(ContainerRuntime):
    commands = ("podman",)


def _bridge_of(spec: WorkerSpec) -> Bridge | None:
    """What runs in the container in place of a worker, where its suites have it so."""
    adapters = [plugins.find("envs", ref.name) for ref in spec.suites.values()]
    found = [
        each.build.bridge(each.argument) if hasattr(each.build, "bridge") else None
        for each in adapters
    ]
    if len(set(found)) > 1:
        raise UsageError(
            f"No image has all of {', '.join(spec.suites)}: give each a run of its own."
        )
    return found[0]


def _absolute(mount: str) -> str:
    """A mount whose folder of this machine is named from the root on."""
    source, colon, rest = mount.partition(":")
    return f"{os.path.abspath(source)}{colon}{rest}" if source.startswith(".") else mount


def _gpu_words(gpus: str, *, is_podman: bool) -> list[str]:
    if not gpus:
        return []
    words = ["--env", "NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility"]
    if not is_podman:
        return [*words, "--gpus", "all" if gpus == "all" else f'"device={gpus}"']
    for number in gpus.split(","):
        words += ["--device", f"nvidia.com/gpu={number}"]
    return words


class Container:
    """A container with the zygote of one worker."""

    def __init__(self, runtime: ContainerRuntime, spec: WorkerSpec) -> None:
        self._runtime = runtime
        self.spec = spec
        self._name = container_name()
        self._scratch = ScratchFolder("link")
        # The folder that is seen in the container may be entered by whoever the image makes its
        # user; the one around it by nobody else.
        self._link = os.path.join(self._scratch.path, "link")
        files = os.path.join(self._link, _FILES)
        os.makedirs(files)
        os.chmod(self._link, 0o755)
        os.chmod(files, 0o777)
        self.left = LeftFolder(files, f"{_LINK}/{_FILES}")
        self._child: Child | None = None
        self._trouble = ""
        self._thread: threading.Thread | None = None
        # Guards that the socket is used and closed once, by the thread that starts the container
        # and by the engine's.
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None
        self._is_ended = False

    def fork(self, ident: int, index: int, fds: tuple[int, int, int]) -> None:
        """Bring the container up, in a thread, and fork its worker."""
        held = [os.dup(fd) for fd in fds]
        self._thread = threading.Thread(target=self._run, args=(ident, index, held), daemon=True)
        self._thread.start()

    def request(self, kind: bytes, ident: int) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._requests is not None:
                self._requests.send(REQUEST.pack(kind, ident, 0))

    def end(self) -> None:
        """Let the container end: it does when its socket does."""
        with self._lock:
            self._is_ended = True
            if self._requests is not None:
                self._requests.close()
                self._requests = None

    def explain(self) -> str:
        if self._child is None or self._trouble:
            return self._trouble
        meaning = _MEANINGS.get(self._child.code(1.0) or 0, "")
        if any(words in self._child.tail() for words in _NO_GPU):
            meaning = " This machine has no such GPU to give it (--runtime.gpus)."
        return f"The container {self._name} {self._child.ending(meaning)}"

    def reap(self) -> bool:
        """True once it is over; then all that belonged to it is closed."""
        is_over = self._is_ended and self._child is not None and not self._child.is_alive
        if is_over:
            self.close(time.monotonic())
        return is_over

    def close(self, deadline: float) -> None:
        """Wait until the container is gone, from `deadline` on by force."""
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()) + 1.0)
            if self._thread.is_alive():
                return  # It builds an image, or waits for a daemon: nothing runs yet.
        if self._child is not None:
            if self._child.code(max(0.0, deadline - time.monotonic())) is None:
                self._runtime.ready()[0].remove(self._name)
            self._child.end(0.0)
        self._scratch.close()

    def _arguments(self, link: str) -> list[str]:
        return self._runtime.arguments(self._name, link, self.spec)

    def _hand_over(self, ident: int, index: int, fds: list[int]) -> None:
        """Have the worker forked, now that the container is up."""
        assert self._requests is not None
        socket.send_fds(self._requests, [REQUEST.pack(FORK, ident, index)], fds)

    def _run(self, ident: int, index: int, fds: list[int]) -> None:
        try:
            requests = self._accept(self._link)
            with self._lock:
                if self._is_ended:
                    requests.close()
                else:
                    self._requests = requests
                    self._hand_over(ident, index, fds)
        except (HocketError, OSError) as exc:
            self._trouble = str(exc)
        finally:
            for fd in fds:
                os.close(fd)

    def _accept(self, link: str) -> socket.socket:
        """Start the container, and take the one connection that it makes."""
        path = os.path.join(link, "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            os.chmod(path, 0o666)
            listener.listen(1)
            arguments = self._arguments(link)
            if self._is_ended:
                raise WorkerFailed("It is not wanted any more.")
            # Podman notes a lack of memory in a file of the folder that it was started in.
            self._child = Child(arguments, cwd=os.path.dirname(link))
            with awaiting("containers to start"):
                while not select.select([listener], [], [], _LOOK_S)[0]:
                    if not self._child.is_alive:
                        raise WorkerFailed(self.explain())
                    if self._is_ended:
                        raise WorkerFailed("It is not wanted any more.")
            return listener.accept()[0]


class BridgedContainer(Container):
    """A container with what serves a worker of this machine: an image whose Python is too old for a
    worker, say. The one ends with the other."""

    zygote: ZygoteProcess

    def __init__(self, runtime: ContainerRuntime, spec: WorkerSpec, bridge: Bridge) -> None:
        super().__init__(runtime, spec)
        self._bridge = bridge
        link = {"link": os.path.join(self._link, _BRIDGE)}
        suites = {
            name: replace(ref, config={**ref.config, **link}) for name, ref in spec.suites.items()
        }
        self.spec = replace(spec, suites=suites)

    def request(self, kind: bytes, ident: int) -> None:
        self.zygote.request(kind, ident)

    def explain(self) -> str:
        is_over = self._child is None or not self._child.is_alive
        return super().explain() if is_over else self.zygote.explain()

    def _arguments(self, link: str) -> list[str]:
        return self._runtime.bridge_arguments(self._name, link, self._bridge)

    def _hand_over(self, ident: int, index: int, fds: list[int]) -> None:
        follower = threading.Thread(target=self._follow, args=(ident, os.dup(fds[2])), daemon=True)
        self.zygote.fork(ident, index, (fds[0], fds[1], fds[2]))
        follower.start()

    def _follow(self, ident: int, log: int) -> None:
        """End the worker when the container ends, with what that said for its last words."""
        assert self._child is not None
        self._child.code(None)
        with contextlib.suppress(ValueError, OSError):  # it may be closed by now
            os.write(log, super().explain().encode())
        os.close(log)
        self.zygote.request(KILL, ident)
