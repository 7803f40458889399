"""Tries one OpenGL backend and prints what it found: a script of its own, with the standard
library alone, because a broken driver may take its process with it.

    python gl_probe.py egl|osmesa

prints one JSON object a line for each device that gives a working context: its index and what
OpenGL calls the renderer. No line and a reason on stderr: the backend does not work here.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import sys
from collections.abc import Callable

_GL_VENDOR = 0x1F00
_GL_RENDERER = 0x1F01
_GL_VERSION = 0x1F02
_EGL_PLATFORM_DEVICE = 0x313F
_EGL_OPENGL_API = 0x30A2
_EGL_CONFIG = (0x3033, 0x0001, 0x3040, 0x0008, 0x3038)  # a pbuffer surface, OpenGL, end of list
_OSMESA_RGBA = 0x1908
_GL_FLOAT = 0x1406
_MOST_DEVICES = 32


def _library(name: str, soname: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(soname)
    except OSError:
        return ctypes.CDLL(ctypes.util.find_library(name) or soname)


def _found(device: int, get_string: Callable[[int], bytes | None]) -> None:
    names = {"renderer": _GL_RENDERER, "vendor": _GL_VENDOR, "version": _GL_VERSION}
    texts = {
        name: (get_string(number) or b"unknown").decode(errors="replace")
        for name, number in names.items()
    }
    sys.stdout.write(json.dumps({"index": device, **texts}) + "\n")
    sys.stdout.flush()


def probe_egl() -> None:
    egl = _library("EGL", "libEGL.so.1")
    pointer = ctypes.c_void_p
    egl.eglGetProcAddress.restype = pointer
    egl.eglGetProcAddress.argtypes = [ctypes.c_char_p]
    egl.eglCreateContext.restype = pointer
    egl.eglCreateContext.argtypes = [pointer, pointer, pointer, pointer]
    egl.eglMakeCurrent.argtypes = [pointer, pointer, pointer, pointer]
    egl.eglInitialize.argtypes = [pointer, pointer, pointer]
    egl.eglChooseConfig.argtypes = [pointer, pointer, pointer, ctypes.c_int, pointer]

    def function(name: bytes, result: type | None, *arguments: type) -> ctypes._FuncPointer:
        address = egl.eglGetProcAddress(name)
        if not address:
            raise OSError(f"{name.decode()} is not offered by the EGL library")
        return ctypes.CFUNCTYPE(result, *arguments)(address)

    query = function(b"eglQueryDevicesEXT", ctypes.c_uint, ctypes.c_int, pointer, pointer)
    display_of = function(b"eglGetPlatformDisplayEXT", pointer, ctypes.c_int, pointer, pointer)
    get_string = function(b"glGetString", ctypes.c_char_p, ctypes.c_uint)
    devices = (pointer * _MOST_DEVICES)()
    count = ctypes.c_int()
    query(_MOST_DEVICES, devices, ctypes.byref(count))
    egl.eglBindAPI(_EGL_OPENGL_API)
    for index in range(count.value):
        display = display_of(_EGL_PLATFORM_DEVICE, devices[index], None)
        if not display or not egl.eglInitialize(display, None, None):
            continue
        config, configs = pointer(), ctypes.c_int()
        wanted = (ctypes.c_int * len(_EGL_CONFIG))(*_EGL_CONFIG)
        egl.eglChooseConfig(display, wanted, ctypes.byref(config), 1, ctypes.byref(configs))
        context = egl.eglCreateContext(display, config, None, None) if configs.value else None
        if context and egl.eglMakeCurrent(display, None, None, context):
            _found(index, get_string)


def probe_osmesa() -> None:
    """Try Mesa's off-screen renderer, which always runs on the CPU."""
    mesa = _library("OSMesa", "libOSMesa.so.8")
    pointer = ctypes.c_void_p
    mesa.OSMesaCreateContextExt.restype = pointer
    mesa.OSMesaGetProcAddress.restype = pointer
    mesa.OSMesaGetProcAddress.argtypes = [ctypes.c_char_p]
    mesa.OSMesaMakeCurrent.argtypes = [pointer, pointer, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    context = mesa.OSMesaCreateContextExt(_OSMESA_RGBA, 24, 8, 0, None)
    pixels = (ctypes.c_float * (8 * 8 * 4))()
    if not context or not mesa.OSMesaMakeCurrent(context, pixels, _GL_FLOAT, 8, 8):
        raise OSError("OSMesa gave no context")
    get_string = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_uint)(
        mesa.OSMesaGetProcAddress(b"glGetString")
    )
    _found(0, get_string)


if __name__ == "__main__":
    try:
        {"egl": probe_egl, "osmesa": probe_osmesa}[sys.argv[1]]()
    except (OSError, AttributeError) as exc:
        sys.exit(f"{sys.argv[1]}: {exc}")
