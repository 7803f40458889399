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
    bare_for_any_python: bool = False
    """What `bare` packages say of the Python that they need is not heeded either."""
    system: tuple[tuple[str, str], ...] = ()
    """Shared libraries that cameras need, and the package of Debian's that has each."""
    draws_with_vulkan: bool = False
    """Where no Vulkan device will do, lavapipe is unpacked beside its packages."""


RENDERING = (("OSMesa", "libosmesa6"), ("EGL", "libegl1"))
LIBERO = ("hf-libero==0.1.4", "robosuite==1.4.0", "bddl==1.0.1")
LIBERO_NEEDS = (
    *("mujoco==3.3.0", "numpy", "scipy", "numba", "pillow", "pyyaml", "opencv-python-headless"),
    *("termcolor", "future", "easydict", "matplotlib", "cloudpickle", "metaworld==3.1.1"),
)
TRAINING = (
    *("tensordict==0.15.3", "tensorboard==2.21.0", "tyro==1.0.16", "rich==15.0.0"),
    *("websockets==17.4", "docstring-parser", "msgpack"),
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
    # LeRobot declares torch < 2.12, which pip would follow by going back to an older one; it runs
    # on the torch pinned here.
    "lerobot": Venv(
        about="LeRobot 0.6.1, what `hocket train` needs, and the envs of lerobot-eval",
        python="3.12",
        flag="--policy-python",
        packages=(
            *("torch", "torchvision", "numpy>=2,<2.3", "opencv-python-headless>=4.9,<4.14"),
            *("Pillow>=10,<13", "einops>=0.8,<0.9", "draccus>=0.11.6,<0.12", "requests>=2.32,<3"),
            *("huggingface-hub>=1.6,<2", "gymnasium>=1.1.1,<2", "safetensors", "timm>=1,<1.1"),
            *("packaging>=24.2,<26", "termcolor>=2.4,<4", "tqdm>=4.66,<5", "peft>=0.18,<1"),
            *("transformers>=5.4,<5.6", "diffusers>=0.38,<0.40", "accelerate>=1.14,<2"),
            *("num2words>=0.5.14,<0.6", "scipy", "sentencepiece", "datasets>=4.8,<5", "pandas<3"),
            *("pyarrow>=21,<30", "av>=15,<16", "jsonlines>=4,<5", "torchdiffeq>=0.2.4,<0.3"),
            *("qwen-vl-utils>=0.0.11,<0.1", *TRAINING, *LIBERO_NEEDS),
            # What gym-pusht and gym-aloha need of those that would bring another cv2 and mujoco.
            *("pymunk>=6.6,<7", "pygame>=2.5.2,<3", "shapely>=2,<3", "dm_control==1.0.28"),
        ),
        bare=("lerobot==0.6.1", "gym-pusht==0.1.8", "gym-aloha==0.1.5", *LIBERO),
        system=RENDERING,
    ),
    # The last LeRobot for Python 3.11.
    "lerobot-0.4": Venv(
        about="LeRobot 0.4.4, for checkpoints that later ones cannot read",
        python="3.11",
        flag="--policy-python",
        packages=(
            *("torch", "torchvision", "datasets>=4,<5", "diffusers>=0.27.2,<0.36"),
            *("huggingface-hub>=0.34.2,<0.36", "accelerate>=1.10,<2", "einops>=0.8,<0.9"),
            *("opencv-python-headless>=4.9,<4.13", "av>=15,<16", "jsonlines>=4,<5"),
            *("draccus==0.10.0", "gymnasium>=1.1.1,<2", "deepdiff>=7.0.1,<9", "imageio>=2.34,<3"),
            *("termcolor>=2.4,<4", "transformers>=4.57.1,<5", "num2words>=0.5.14,<0.6"),
            *("pyserial>=3.5,<4", "safetensors", "packaging<26", "sentencepiece", "peft==0.21.2"),
            *(*TRAINING, *LIBERO_NEEDS),
        ),
        bare=("lerobot==0.4.4", *LIBERO),
        system=RENDERING,
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
    "vla-eval": Venv(
        about="vla-eval 0.8.0, whose harness and model servers speak `vla-eval://`",
        python="3.11",
        flag="--env-python",
        packages=(
            *("vla-eval==0.8.0", "numpy", "pillow", "websockets>=14,<18", "msgpack"),
            *("gymnasium==1.4.0", "av>=14,<19"),
        ),
    ),
    "maniskill": Venv(
        about="ManiSkill 3.0.1 on SAPIEN 3.0.3, with SimplerEnv's tasks; on a CPU, or CUDA's torch",
        python="3.11",
        flag="--env-python",
        packages=(
            *("torch", "mani_skill==3.0.1", "sapien==3.0.3", "msgpack", "packaging", "av>=14,<19"),
        ),
        draws_with_vulkan=True,
    ),
    # It asserts on MuJoCo 4, and declares what evaluating its tasks does not need.
    "robosuite": Venv(
        about="robosuite 1.5.2, whose tasks with the Panda `robosuite:` runs",
        python="3.11",
        flag="--env-python",
        packages=("msgpack", "av>=14,<19"),
        bare=(
            *("robosuite==1.5.2", "mujoco==3.3.0", "numpy==1.26.4", "numba==0.61.2"),
            *("llvmlite==0.44.0", "scipy==1.15.3", "mink==0.0.5", "qpsolvers==4.3.3", "quadprog"),
            *("Pillow", "opencv-python-headless==4.11.0.86", "termcolor", "tqdm", "packaging"),
            *("gymnasium==1.2.1", "cloudpickle", "typing_extensions", "farama-notifications"),
            *("absl-py", "etils", "glfw", "pyopengl"),
        ),
        system=RENDERING,
    ),
    # Without Kit: Newton is the physics, and no asset is asked of a server. The wheel says Python
    # 3.12 and an older torch; its code runs on these.
    "isaaclab": Venv(
        about="Isaac Lab 3.0.0 with Newton, for `isaaclab:` without Isaac Sim",
        python="3.11",
        flag="--env-python",
        packages=(
            *("torch", "warp-lang==1.17.0", "newton[sim]==1.6.1", "newton-usd-schemas==0.6.0"),
            *("usd-exchange==3.0.1", "omniverseclient==2.74.0", "gymnasium==1.4.0", "trimesh"),
            *("lazy_loader", "prettytable", "hydra-core", "h5py", "scipy", "fast-simplification"),
            *("rich", "tqdm", "numba", "psutil", "einops", "filelock", "tensorboard"),
            *("matplotlib", "pillow", "gitpython", "pyglet", "msgpack", "av>=14,<19"),
        ),
        bare=("isaaclab==3.0.0",),
        bare_for_any_python=True,
    ),
}
