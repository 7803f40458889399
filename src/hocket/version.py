"""The version of hocket, where even a worker without its metadata finds it."""

VERSION = "0.1.0"
