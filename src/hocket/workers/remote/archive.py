"""The code that a far end needs, as one file that Python can run: nothing is installed there."""

from __future__ import annotations

import functools
import io
import struct
import zipfile
from pathlib import Path

import hocket
from hocket.system import scratch

CHECKS = """\
import importlib.util, sys

if sys.version_info < (3, 10):
    sys.exit("hocket's workers need Python 3.10 or newer; this is " + sys.version)
if importlib.util.find_spec("numpy") is None:
    sys.exit("hocket's workers need numpy, which " + sys.executable + " lacks.")
"""
"""Lines of Python that exit, with words, where no worker can run."""
_MAIN = f"""\
{CHECKS}
import os, zipfile

file = zipfile.ZipFile(globals().get("HOCKET_CODE", sys.argv[0]))
scratch = {{"__name__": "scratch"}}  # The module that makes folders, before it can be imported.
exec(file.read("first/{scratch.__name__.replace(".", "/")}.py"), scratch)
with scratch["ScratchFolder"]("code") as unpacked:
    folder = str(unpacked.path)
    file.extractall(folder)
    file.close()
    # hocket itself goes before what is installed here, the libraries that came along after it.
    sys.path[0] = os.path.join(folder, "first")
    sys.path.append(os.path.join(folder, "last"))
    from hocket.workers.remote.relay import main

    code = main(sys.argv[1:])
sys.exit(code)
"""
_LEFT_OUT = ("cli", "train", "serve", "watch", "machines", "runs", "results", "adapters/policies")
"""Folders of hocket that no worker imports."""
_LENGTH = struct.Struct("<I")

LOADER = (
    "import io,os,sys,zipfile\n"
    "def r(n):\n"
    " b=b''\n"
    " while len(b)<n:\n"
    "  d=os.read(0,n-len(b))\n"
    "  if not d: sys.exit('The stream ended before the code had come.')\n"
    "  b+=d\n"
    " return b\n"
    "HOCKET_CODE=io.BytesIO(r(int.from_bytes(r(4),'little')))\n"
    "sys.argv=['hocket-worker','stdio']\n"
    "exec(zipfile.ZipFile(HOCKET_CODE).read('__main__.py'))\n"
)
"""A program for `python -c` that takes the code from its standard input and runs it."""


@functools.cache
def code_archive() -> bytes:
    """A zip archive that Python runs as the far end: `python code.zip stdio`."""
    import msgpack
    import websockets

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", _MAIN)
        package = Path(hocket.__file__).parent
        for path in sorted(package.rglob("*")):
            inside = path.relative_to(package).as_posix()
            is_left_out = any(inside.startswith(f"{folder}/") for folder in _LEFT_OUT)
            if path.is_file() and "__pycache__" not in path.parts and not is_left_out:
                archive.write(path, f"first/hocket/{inside}")
        for library in (msgpack, websockets):
            folder = Path(str(library.__file__)).parent
            for path in sorted(folder.rglob("*.py")):
                archive.write(path, f"last/{library.__name__}/{path.relative_to(folder)}")
    return packed.getvalue()


def code_message() -> bytes:
    """The archive as LOADER reads it."""
    data = code_archive()
    return _LENGTH.pack(len(data)) + data
