"""Run by LeRobot's own interpreter: opens a dataset with LeRobot and tells what it sees.

    python lerobot_reader.py DATASET OUT.npz

Where LeRobot's interpreter has no decoder that LeRobot knows (torchcodec, or torchvision with its
video reader), PyAV decodes at the times that LeRobot asks for.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch


def decode(video: str | Path, times: list[float], tolerance_s: float, *_: Any) -> torch.Tensor:
    """Frames at these times, float `[n, 3, h, w]` in 0 to 1, as LeRobot's decoders give them."""
    import av

    found: dict[float, Any] = {}
    with av.open(str(video)) as container:
        for frame in container.decode(video=0):
            for time in times:
                if abs(frame.time - time) < tolerance_s:
                    found[time] = frame.to_ndarray(format="rgb24")
    assert set(found) == set(times), "a frame is not at the time where it should be"
    stacked = np.stack([found[time] for time in times])
    return torch.from_numpy(stacked).permute(0, 3, 1, 2).float() / 255


def main(root: str, out: str) -> None:
    from lerobot.datasets import lerobot_dataset

    if importlib.util.find_spec("torchcodec") is None:
        lerobot_dataset.decode_video_frames = decode
    dataset = lerobot_dataset.LeRobotDataset("local/exported", root=root)
    items = [dataset[index] for index in range(len(dataset))]
    arrays = {
        key: np.stack([item[key].numpy() for item in items])
        for key, value in items[0].items()
        if isinstance(value, torch.Tensor)
    }
    arrays["tasks"] = np.array([item["task"] for item in items])
    arrays["mean_of_action"] = np.asarray(dataset.meta.stats["action"]["mean"])
    np.savez(out, **arrays)
    told = {
        "episodes": dataset.num_episodes,
        "frames": dataset.num_frames,
        "fps": dataset.fps,
        "cameras": dataset.meta.camera_keys,
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
