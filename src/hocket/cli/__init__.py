"""The command line: each verb is a dataclass of flags and a function, `run` in a module of its own
or beside the verbs that it shares its end with.

Nothing is decided here. A verb's module is imported when the verb is asked for, so that
`hocket --help` costs next to nothing. Exit codes: 0 all well; 1 errors, a mismatch or an unfinished
run; 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from hocket import rooms
from hocket.core.plugins import did_you_mean
from hocket.errors import HocketError, RunFolderError, UsageError
from hocket.system.limits import require_address_space
from hocket.system.text import printable

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
COLLECT_AFTER = (20_000, 10, 10)
"""New objects after which the command looks for garbage. After Python's own 700 it would look some
hundred times through what is imported: a tenth of the CPU before the first chunk."""
_SPIN = 20
"""Threads of numpy's OpenBLAS look for more work during 2**20 cycles, half a millisecond, before
they sleep. By themselves each looks for a hundred times as long, once numpy is imported and after
every large product: on many cores seconds of CPU, for nothing."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line, and the module whose `function(arguments)` does it."""

    module: str
    summary: str
    function: str = "run"
    room: str = ""
    """The part of hocket that it needs, where that can be taken out."""


VERBS = {
    "eval": Verb("hocket.cli.eval", "Run a policy on every task of one or more suites; report."),
    "lerobot-eval": Verb(
        "hocket.cli.lerobot_eval", "Do what lerobot-eval does, with its flags.", room="exports"
    ),
    "resume": Verb(
        "hocket.cli.eval", "Finish a run that was interrupted; nothing runs twice.", "resume"
    ),
    "report": Verb("hocket.cli.eval", "Make report.json and report.html of a run again.", "report"),
    "watch": Verb(
        "hocket.cli.watch",
        "See a run in the browser, while it goes on or afterwards.",
        room="watch",
    ),
    "compare": Verb("hocket.cli.compare", "Compare two runs trial by trial: which is better?"),
    "card": Verb("hocket.cli.verify", "Put a run on a card that others can check.", "card"),
    "verify": Verb("hocket.cli.verify", "Check a card: run a sample of its trials again."),
    "reproduce": Verb(
        "hocket.cli.verify", "Run what a card says again: agrees, differs, or too few?", "reproduce"
    ),
    "video": Verb("hocket.cli.video", "Film episodes of a run afterwards, from its states."),
    "export": Verb(
        "hocket.cli.export",
        "Write a run for LeRobot, robomimic, Rerun or Perfetto.",
        room="exports",
    ),
    "push": Verb(
        "hocket.cli.export",
        "Push a run's card, page, films and scores to the hub.",
        "push",
        room="exports",
    ),
    "collect": Verb(
        "hocket.cli.export", "Collect demonstrations straight to a dataset.", "collect", "exports"
    ),
    "replay": Verb(
        "hocket.cli.verify", "Run one trial of a run again and verify every step.", "replay"
    ),
    "train": Verb(
        "hocket.cli.train",
        "Train a policy: clone recordings, improve by PPO or GRPO.",
        room="train",
    ),
    "work": Verb(
        "hocket.cli.work", "Take part in a run that a driver elsewhere leads.", room="machines"
    ),
    "check": Verb("hocket.cli.check", "Show what the policy really sees, on one chunk; no run."),
    "serve": Verb(
        "hocket.cli.serve", "Serve a policy over OpenPI's protocol, in batches.", room="serve"
    ),
    "plan": Verb("hocket.cli.plan", "Predict throughput from lanes, cores and policy latency."),
    "image": Verb(
        "hocket.cli.setup", "Write a Dockerfile for a simulator, to run it in containers.", "image"
    ),
    "venv": Verb(
        "hocket.cli.setup", "Build an interpreter for packages whose pins conflict.", "venv"
    ),
    "docs": Verb("hocket.cli.begin", "Read the documentation in the terminal.", "docs"),
    "init": Verb("hocket.cli.begin", "Write an env, a policy and tests to start from.", "init"),
    "completion": Verb(
        "hocket.cli.begin", "Let bash, zsh or fish complete this command.", "completion"
    ),
    "doctor": Verb(
        "hocket.cli.setup", "Say what works on this machine, and how to get the rest.", "doctor"
    ),
}

EXAMPLES = """\
examples:
  hocket eval --env metaworld:mt10 --policy reference --episodes 5 --seed 0
  hocket eval --env metaworld:mt10 --help       # with the flags of this env
  hocket eval --config runs/mine/run.yaml       # the same run again
  hocket train --env metaworld:push-v3 --policy reference --mode async
  hocket watch runs                             # every run, live, in a browser
  hocket compare runs/mine runs/theirs --html compare.html
  hocket check --env metaworld:reach --policy my_package.models:MyPolicy
  hocket plan --lanes 1:128 --cores 8 --execute-s 0.16 --latency 75+8.5B
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit code. Without arguments it is the command
    itself, and ends the process where a policy that hangs would keep it from ending."""
    if arguments is not None:
        return _do(list(arguments))
    gc.set_threshold(*COLLECT_AFTER)
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", str(_SPIN))
    code = _do(sys.argv[1:])
    # Python's last collections walk through all that was imported: a tenth of the CPU of a small
    # run, and with torch a second, while Ctrl-C seems not to have been heard.
    gc.freeze()
    if any(thread.name.startswith("hocket-hung") for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _do(given: list[str]) -> int:
    head = given[0] if given else "--help"
    if head in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return OK if given else USAGE
    if head in ("-V", "--version"):
        sys.stdout.write(f"hocket {importlib.metadata.version('hocket')}\n")
        return OK
    verb = VERBS.get(head)
    try:
        if verb is None:
            kind = "flag" if head.startswith("-") else "verb"
            raise UsageError(
                f"There is no {kind} {head!r}.{did_you_mean(head, VERBS)} "
                f"Verbs: {', '.join(VERBS)}; hocket --help tells more."
            )
        require_address_space()
        if verb.room:
            rooms.require(verb.room)
        with rooms.explained():
            code: int = getattr(importlib.import_module(verb.module), verb.function)(given[1:])
    except HocketError as error:
        sys.stderr.write(f"hocket: {printable(str(error))}\n")
        return USAGE if isinstance(error, (UsageError, RunFolderError)) else FAILED
    except KeyboardInterrupt:
        sys.stderr.write("hocket: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output (head, less) has gone; keep the flush at exit from complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        if error.filename is None:
            raise
        # A path that a flag named, or a disk that is full: not a fault of the program.
        sys.stderr.write(f"hocket: {printable(str(error.filename))}: {error.strerror}\n")
        return FAILED
    return code


def _help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items())
    return (
        "usage: hocket VERB [flags]      hocket VERB --help      hocket --version\n\n"
        "Runs action-chunking robot policies in many simulated environments at once.\n\n"
        f"verbs:\n{verbs}\n\n{EXAMPLES}"
    )
