#!/bin/sh
# Builds the interpreters that LIBERO, LeRobot and envs of gymnasium's need apart from hocket's own:
# their pins conflict with each other's and with MetaWorld's.
#
#     tools/make_venvs.sh [libero] [lerobot] [lerobot-0.6] [gym]      all where none is named
#
# They go to venvs/, and are used as
#
#     hocket eval --env-python venvs/libero/bin/python --policy-python venvs/lerobot/bin/python ...
#
# hocket itself is installed in none. A venv with its stamp is left as it is; remove the folder to
# build it again. PYTHON chooses the interpreter (3.11), PYTHON312 that of LeRobot 0.6 (3.12), which
# is left out where there is none and nobody named it.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
PYTHON312=${PYTHON312:-python3.12}

say() { echo "make_venvs: $*" >&2; }

is() { # interpreter, version
    "$1" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$2')" 2>/dev/null
}

begin() { # name, interpreter, version: false where the venv is whole already
    if [ -e "venvs/$1/.ready" ]; then
        say "venvs/$1 is ready"
        return 1
    fi
    is "$2" "$3" || {
        say "the pins of venvs/$1 were made for Python $3, which $2 is not; set PYTHON=python3.11" \
            "or PYTHON312=path/to/python3.12"
        exit 1
    }
    say "building venvs/$1 (some minutes)"
    "$2" -m venv --clear "venvs/$1"
}

install() { # name, then what pip installs
    venv=$1
    shift
    "venvs/$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --prefer-binary --constraint tools/constraints.venvs.txt "$@"
}

mend_torchvision() { # name: see the file that is copied
    site=$("venvs/$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "venvs/$1/bin/python" -c 'import torchvision' 2>/dev/null \
        || cp tools/torchvision_operators.py "$site/sitecustomize.py"
}

# The declared dependencies of these three ask for old versions and for packages that running a task
# does not need; each of the others is needed.
LIBERO='hf-libero==0.1.4 robosuite==1.4.0 bddl==1.0.1'
LIBERO_NEEDS='mujoco==3.3.0 numpy scipy numba pillow pyyaml opencv-python-headless termcolor
    future easydict matplotlib cloudpickle'

libero() {
    begin libero "$PYTHON" 3.11 || return 0
    # MetaWorld beside it, so that one run can have suites of both; av for videos.
    install libero $LIBERO_NEEDS metaworld==3.1.1 gymnasium==1.4.0 packaging msgpack 'av>=14,<19'
    install libero --no-deps $LIBERO
    touch venvs/libero/.ready
}

# LeRobot 0.4.4 is the last for Python 3.11. It declares torch < 2.11, which pip would follow by
# going back to an older LeRobot; it runs on the torch pinned here.
lerobot() {
    begin lerobot "$PYTHON" 3.11 || return 0
    install lerobot torch torchvision 'datasets>=4,<5' 'diffusers>=0.27.2,<0.36' \
        'huggingface-hub>=0.34.2,<0.36' 'accelerate>=1.10,<2' 'einops>=0.8,<0.9' \
        'opencv-python-headless>=4.9,<4.13' 'av>=15,<16' 'jsonlines>=4,<5' 'draccus==0.10.0' \
        'gymnasium>=1.1.1,<2' 'deepdiff>=7.0.1,<9' 'imageio>=2.34,<3' 'termcolor>=2.4,<4' \
        'transformers>=4.57.1,<5' 'num2words>=0.5.14,<0.6' 'pyserial>=3.5,<4' safetensors \
        msgpack 'packaging<26' sentencepiece
    install lerobot --no-deps lerobot==0.4.4
    # hocket train runs in the interpreter that has the policy: what it needs itself, and peft.
    install lerobot tensordict==0.15.3 tensorboard==2.21.0 peft==0.21.2 tyro==1.0.16 rich==15.0.0 \
        websockets==17.4 docstring-parser pyyaml
    # LIBERO and MetaWorld beside it, for lerobot-eval itself.
    install lerobot $LIBERO_NEEDS metaworld==3.1.1
    install lerobot --no-deps $LIBERO
    mend_torchvision lerobot
    touch venvs/lerobot/.ready
}

# The first LeRobot whose pi0 needs no patched transformers is 0.5; both want Python 3.12.
lerobot06() {
    begin lerobot-0.6 "$PYTHON312" 3.12 || return 0
    install lerobot-0.6 torch torchvision 'numpy>=2,<2.3' 'opencv-python-headless>=4.9,<4.14' \
        'Pillow>=10,<13' 'einops>=0.8,<0.9' 'draccus>=0.11.6,<0.12' 'huggingface-hub>=1.6,<2' \
        'requests>=2.32,<3' 'gymnasium>=1.1.1,<2' safetensors 'packaging>=24.2,<26' \
        'termcolor>=2.4,<4' 'tqdm>=4.66,<5' 'transformers>=5.4,<5.6' 'diffusers>=0.38,<0.40' \
        'accelerate>=1.14,<2' 'num2words>=0.5.14,<0.6' scipy msgpack sentencepiece
    install lerobot-0.6 --no-deps lerobot==0.6.1
    mend_torchvision lerobot-0.6
    touch venvs/lerobot-0.6/.ready
}

# Envs that `gym:` alone runs; docs/envs.md says what was seen of each.
gym() {
    begin gym "$PYTHON" 3.11 || return 0
    install gym gymnasium==1.4.0 gym-pusht==0.1.8 gym-aloha==0.1.5 gymnasium-robotics==1.4.2 \
        'shimmy[dm-control]==2.0.1' dm_control==1.0.41 mujoco==3.8.1 msgpack 'av>=14,<19'
    touch venvs/gym/.ready
}

if [ $# = 0 ]; then
    set -- libero lerobot gym
    if is "$PYTHON312" 3.12; then
        set -- "$@" lerobot-0.6
    else
        say "venvs/lerobot-0.6 is left out: no Python 3.12 (set PYTHON312)"
    fi
fi
for name in "$@"; do
    case $name in
    libero) libero ;;
    lerobot) lerobot ;;
    lerobot-0.6) lerobot06 ;;
    gym) gym ;;
    *)
        say "no venv is called $name; known: libero, lerobot, lerobot-0.6, gym"
        exit 2
        ;;
    esac
done
