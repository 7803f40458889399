"""The interpreters of their own, as data: a row for each, which `hocket venv` builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PINS = ("torch==2.13.0", "torchvision==0.28.0")
"""The versions wherever a venv has these packages; torchvision is the one made for this torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Venv:
    """Packages whose pins conflict with others'. hocket itself is not among them."""

    about: str
    python: str
    """The version that the pins were made for."""
    flag: str
    """The flag of hocket's that takes the interpreter."""
    packages: tuple[str, ...]
    bare: tuple[str, ...] = ()
    """Packages installed without what they declare: old versions, and what running a task does not
    need."""
    system: tuple[tuple[str, str], ...] = ()
    """Shared libraries that cameras need, and the package of Debian's that has each."""


RENDERING = (("OSMesa", "libosmesa6"), ("EGL", "libegl1"))
LIBERO = ("hf-libero==0.1.4", "robosuite==1.4.0", "bddl==1.0.1")
LIBERO_NEEDS = (
    *("mujoco==3.3.0", "numpy", "scipy", "numba", "pillow", "pyyaml", "opencv-python-headless"),
    *("termcolor", "future", "easydict", "matplotlib", "cloudpickle", "metaworld==3.1.1"),
)

VENVS: Mapping[str, Venv] = {
    "libero": Venv(
        about="LIBERO, and MetaWorld so that one run can have suites of both",
        python="3.11",
        flag="--env-python",
        packages=(*LIBERO_NEEDS, "gymnasium==1.4.0", "packaging", "msgpack", "av>=14,<19"),
        bare=LIBERO,
        system=RENDERING,
    ),
    # 0.4.4 is the last for Python 3.11. It declares torch < 2.11, which pip would follow by going
    # back to an older LeRobot; it runs on the torch pinned here.
    "lerobot": Venv(
        about="LeRobot 0.4.4, what `hocket train` needs, and the envs of lerobot-eval",
        python="3.11",
        flag="--policy-python",
        packages=(
            *("torch", "torchvision", "datasets>=4,<5", "diffusers>=0.27.2,<0.36"),
            *("huggingface-hub>=0.34.2,<0.36", "accelerate>=1.10,<2", "einops>=0.8,<0.9"),
            *("opencv-python-headless>=4.9,<4.13", "av>=15,<16", "jsonlines>=4,<5"),
            *("draccus==0.10.0", "gymnasium>=1.1.1,<2", "deepdiff>=7.0.1,<9", "imageio>=2.34,<3"),
            *("termcolor>=2.4,<4", "transformers>=4.57.1,<5", "num2words>=0.5.14,<0.6"),
            *("pyserial>=3.5,<4", "safetensors", "msgpack", "packaging<26", "sentencepiece"),
            *("tensordict==0.15.3", "tensorboard==2.21.0", "peft==0.21.2", "tyro==1.0.16"),
            *("rich==15.0.0", "websockets==17.4", "docstring-parser"),
            *LIBERO_NEEDS,
        ),
        bare=("lerobot==0.4.4", *LIBERO),
        system=RENDERING,
    ),
    # The first LeRobot whose pi0 needs no patched transformers is 0.5; both want Python 3.12.
    "lerobot-0.6": Venv(
        about="LeRobot 0.6.1",
        python="3.12",
        flag="--policy-python",
        packages=(
            *("torch", "torchvision", "numpy>=2,<2.3", "opencv-python-headless>=4.9,<4.14"),
            *("Pillow>=10,<13", "einops>=0.8,<0.9", "draccus>=0.11.6,<0.12", "requests>=2.32,<3"),
            *("huggingface-hub>=1.6,<2", "gymnasium>=1.1.1,<2", "safetensors"),
            *("packaging>=24.2,<26", "termcolor>=2.4,<4", "tqdm>=4.66,<5"),
            *("transformers>=5.4,<5.6", "diffusers>=0.38,<0.40", "accelerate>=1.14,<2"),
            *("num2words>=0.5.14,<0.6", "scipy", "msgpack", "sentencepiece"),
        ),
        bare=("lerobot==0.6.1",),
    ),
    "gym": Venv(
        about="envs that `gym:` alone runs; docs/envs.md says what was seen of each",
        python="3.11",
        flag="--env-python",
        packages=(
            *("gymnasium==1.4.0", "gym-pusht==0.1.8", "gym-aloha==0.1.5"),
            *("gymnasium-robotics==1.4.2", "shimmy[dm-control]==2.0.1", "dm_control==1.0.41"),
            *("mujoco==3.8.1", "msgpack", "av>=14,<19"),
        ),
        system=RENDERING,
    ),
}
