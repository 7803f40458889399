"""LeRobot's own writer on given frames; run by LeRobot's interpreter, for export.py.

    python lerobot_writer.py FRAMES OUT CODEC STREAMING

FRAMES has one folder for each episode with `image.npy`, `wrist_image.npy`, `state.npy` and
`action.npy`. Prints seconds and peak memory as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch

# A torchvision built for GPUs cannot be imported beside a torch without them, unless these
# operators, which nothing here calls, are known.
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402

CAMERAS = ("image", "wrist_image")


def main(frames: str, out: str, codec: str, streaming: str) -> None:
    episodes = sorted(Path(frames).iterdir())
    shape = np.load(episodes[0] / "image.npy", mmap_mode="r").shape[1:]
    features = {
        f"observation.images.{camera}": {
            "dtype": "video",
            "shape": shape,
            "names": ["height", "width", "channels"],
        }
        for camera in CAMERAS
    }
    features["observation.state"] = {"dtype": "float32", "shape": (8,), "names": None}
    features["action"] = {"dtype": "float32", "shape": (7,), "names": None}
    began, before = time.monotonic(), time.process_time()
    dataset = LeRobotDataset.create(
        "local/benchmark",
        20,
        features,
        root=out,
        vcodec=codec,
        streaming_encoding=streaming == "streaming",
        image_writer_threads=0 if streaming == "streaming" else 4,
    )
    for episode in episodes:
        rows = {name: np.load(episode / f"{name}.npy") for name in (*CAMERAS, "state", "action")}
        for i in range(len(rows["action"])):
            frame = {f"observation.images.{camera}": rows[camera][i] for camera in CAMERAS}
            frame |= {"observation.state": rows["state"][i], "action": rows["action"][i]}
            dataset.add_frame({**frame, "task": "shapes"})
        dataset.save_episode()
    dataset.finalize()
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    encoders = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = sum(each.ru_utime + each.ru_stime for each in (used, encoders)) - before
    told = {"seconds": seconds, "cpu_s": cpu_s, "peak_mib": used.ru_maxrss / 1024}
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
