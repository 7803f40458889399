"""Starts a zygote: run by path, by this interpreter or by another that has nothing of hocket's.

    python bootstrap.py <socket: fd or path> <json: path, package, msgpack, suites>

A socket that is named by its path is on a mount of a container, and the parent listens there.

This interpreter gets the parent's `sys.path`. Another one keeps its own, and hocket (and msgpack,
where it lacks it) are loaded from where the parent has them, without putting the parent's
site-packages on the path: they hold packages built for another Python.
"""

import importlib.util
import json
import os
import socket
import sys
from typing import Any


def load_package(name: str, folder: str) -> None:
    """Import a package from its folder, leaving `sys.path` alone."""
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        sys.exit("There is no package " + name + " in " + folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def prepare(setup: "dict[str, Any]") -> None:
    if setup["path"] is not None:
        sys.path[:] = setup["path"]
        if importlib.util.find_spec("hocket") is None:  # the parent was lent it
            load_package("hocket", setup["package"])
        return
    # In place of this script's own folder, whose modules are not top-level ones.
    sys.path[0] = os.getcwd()
    load_package("hocket", setup["package"])
    if importlib.util.find_spec("msgpack") is None:
        os.environ["MSGPACK_PUREPYTHON"] = "1"
        load_package("msgpack", setup["msgpack"])
        del os.environ["MSGPACK_PUREPYTHON"]


def connect(path: str) -> int:
    """A socket to whoever listens at a path. Nobody does any more if the parent is gone."""
    found = socket.socket(socket.AF_UNIX)
    found.connect(path)
    return found.detach()


def main() -> None:
    address, setup = sys.argv[1], json.loads(sys.argv[2])
    if sys.version_info < (3, 10):  # noqa: UP036 - any interpreter may have been named
        sys.exit("hocket's workers need Python 3.10 or newer; this is " + sys.version)
    prepare(setup)
    from hocket.workers.local import zygote

    sys.argv[:] = ["hocket-worker"]
    zygote.main(int(address) if address.isdigit() else connect(address), setup["suites"])
    # All workers are gone, and nothing is left to be undone of what was imported for them.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
