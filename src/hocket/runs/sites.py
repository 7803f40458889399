"""How a user says which machines a run is on, and what each site there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hocket.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteConfig:
    """What each site is, and how long it may be silent."""

    lease_s: float = 30.0
    """Seconds without a word after which a site has lost what it was running. It spends no
    retry."""
    mixed: bool = False
    """Let sites take part whose versions, files or weights differ; run.yaml then says so."""
    key_file: str = ""
    """With listen: where the key and the certificate for `hocket work` are written; by default
    site.key in the run folder's parent."""
    python: str = "python3"
    """With ssh: the interpreter there, in which hocket is installed."""
    folder: str = ""
    """With ssh: the folder to start in there."""
    options: tuple[str, ...] = ()
    """With ssh: options of ssh as its configuration has them (Port=2222)."""
    cpus: float = 1.0
    """With ray: cores that each site asks for."""
    gpus: float = 0.0
    """With ray: GPUs that each site asks for."""
    memory: int | None = None
    """With ray: memory that each site asks for (64G)."""

    runtime_env: str = ""
    """With ray: a YAML file with Ray's runtime_env (working_dir, pip, image_uri ...), by which the
    code comes to the sites."""

    def __post_init__(self) -> None:
        if not self.lease_s > 0:
            raise ConfigError(f"site.lease is {self.lease_s}; it must be above 0.")
        for name, amount in (("cpus", self.cpus), ("gpus", self.gpus)):
            if not amount >= 0 or (amount > 1 and amount % 1):
                raise ConfigError(
                    f"site.{name} is {amount:g}; it must be a whole number, or a part of 1."
                )


_OF_KIND = {
    "listen": ("key_file",),
    "ssh": ("python", "folder", "options"),
    "ray": ("cpus", "gpus", "memory", "runtime_env"),
}
"""Settings of a site that only one kind of machines reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinesConfig:
    """Where the sites of a run are."""

    where: str
    """local:N, listen[:HOST:PORT], ssh:HOST,..., ray or ray://HOST:PORT."""
    sites: int | Literal["auto"] = "auto"
    """With ray: how many; auto is as many as the cluster has room for."""
    site: SiteConfig

    def __post_init__(self) -> None:
        usual = SiteConfig()
        for kind, names in _OF_KIND.items():
            for name in names if kind != self.kind else ():
                if getattr(self.site, name) != getattr(usual, name):
                    raise ConfigError(
                        f"--site.{name.replace('_', '-')} belongs to --machines {kind}, and this "
                        f"is --machines {self.where}."
                    )
        if self.sites == "auto":
            return
        if self.sites < 1:
            raise ConfigError(f"--sites is {self.sites}; it must be 1 or more.")
        if self.kind != "ray":
            raise ConfigError(
                f"--sites says how many sites ray places; with --machines {self.where} there are "
                f"as many as that names."
            )

    @property
    def kind(self) -> str:
        return self.where.partition(":")[0]

    @property
    def argument(self) -> str:
        return self.where.partition(":")[2]
