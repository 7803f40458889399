"""Lets a torchvision that was built for another device than torch be imported.

`hocket venv` copies this into a venv as sitecustomize.py where importing torchvision fails
there, as it does beside a torch for CPUs alone: its compiled operators are missing then, and it
stops where it registers two of them. LeRobot uses its networks, not these operators.
"""

import sys
from importlib.abc import MetaPathFinder

_kept: list[object] = []  # operators live as long as the library object that defined them


class _Operators(MetaPathFinder):
    """Declares the operators when torchvision is first looked for, and finds nothing itself."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(
                    f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )
            _kept.append(library)


sys.meta_path.insert(0, _Operators())
