"""A run on a Ray cluster that has no node for sites, and whose autoscaler may give it two.

The cluster is Ray's own AutoscalingCluster, which ends every Ray cluster that it sees before it
begins and when it is shut down. So this program is to be run where it sees neither processes nor
ports but its own: `test_more_nodes_are_asked_for_where_ray_can_have_them` does.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import AutoscalingCluster

from hocket.core.events import Event, SitesChanged
from hocket.machines.machines import Machines
from hocket.runs.run import Run
from hocket.runs.sites import MachinesConfig, SiteConfig
from support.sites import toys

APART = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--net")
"""Begins a command that sees no other processes and has no network but its own."""
_SET_FLAGS, _UP = 0x8914, 0x41
_LISTS = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray")


class Growing(AutoscalingCluster):  # type: ignore[misc]
    """With the configuration that Ray's is made from: Ray's packages lack its file."""

    def _generate_config(
        self, head_resources: Any, worker_node_types: Any, **_: Any
    ) -> dict[str, Any]:
        head = {"resources": head_resources, "node_config": {}, "max_workers": 0}
        provider = {
            "type": "fake_multinode",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        }
        return {
            "cluster_name": "growing",
            "max_workers": 2,
            "provider": provider,
            "available_node_types": {**worker_node_types, "ray.head.default": head},
            "head_node_type": "ray.head.default",
            "auth": {},
            "upscaling_speed": 1.0,
            "idle_timeout_minutes": 5,
            "docker": {},
            "file_mounts": {},
            "cluster_synced_files": [],
            "file_mounts_sync_continuously": False,
            "rsync_exclude": [],
            "rsync_filter": [],
            **{f"{name}_commands": [] for name in (*_LISTS, "worker_start_ray")},
        }


class Watch:
    """A reader that sees how many sites take part at most, and what they have of the cluster."""

    def __init__(self) -> None:
        self.taken: dict[int, dict[str, float]] = {}

    def on(self, event: Event) -> None:
        if isinstance(event, SitesChanged) and (sites := sum(s.lanes > 0 for s in event.sites)):
            total, free = ray.cluster_resources(), ray.available_resources()
            names = ("CPU", "GPU", "memory")
            self.taken[sites] = {name: total.get(name, 0.0) - free.get(name, 0.0) for name in names}

    def close(self) -> None: ...


def main(folder: Path) -> None:
    with socket.socket() as some:
        fcntl.ioctl(some, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ADDRESS="127.0.0.1:6379")
    small = {"object_store_memory": 80 << 20}
    kind = {"resources": {"CPU": 1, **small}, "node_config": {}, "min_workers": 0, "max_workers": 2}
    reader = Watch()
    config = toys(episodes=400, env_config={"step_s": 0.02})
    # The paths of Ray's sockets are long.
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        os.environ["RAY_TMPDIR"] = short
        cluster = Growing(head_resources={"CPU": 0, **small}, worker_node_types={"small": kind})
        cluster.start()
        where = MachinesConfig(where="ray", site=SiteConfig())
        with Machines(where) as machines, Run.new(config, folder / "there") as run:
            report = run.finish(elsewhere=machines, readers=[reader])
        cluster.shutdown()
    found = {"complete": report.complete, "sites": max(reader.taken)}
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
