"""The command line: picks the command, and ends the process with its exit code.

The commands are in `commands`; each is imported only when it is asked for, since JAX takes
seconds to import and not all need it.
"""

import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from .commands.messages import give_up_output, mistake
from .xla_flags import same_bits_in_every_row

USAGE = """\
usage: headrace COMMAND

commands:
  train RECIPE [--section.key value ...]  run a recipe: a built-in name or a .toml file
  train RECIPE --policy NAME              start from a pretrained policy: a folder, a name on the
                                          Hub, a .gguf file, or smollm2
  train RECIPE --algorithm NAME           train by the method of a paper: grpo, dapo, gspo, ppo, …
  train RECIPE --help                     show all settings, with the recipe's values
  sft DATA [--policy NAME]                imitate conversations, given as messages in a
                                          .jsonl, .parquet or .array_record file
  prefer DATA [--preference.loss dpo]     learn from pairs of answers, or answers with labels: dpo,
                                          ipo, orpo, kto
  distill DATA --teacher NAME             follow a teacher's distributions on conversations
  resume RUN [--section.key value ...]    go on with a train, sft, prefer or distill run that was
                                          ended or killed, from its last checkpoint
  simulate RECIPE [--sim.key value ...]   predict a run under a virtual clock: a recipe, or the
                                          scenarios balanced and agent; --json for one JSON object
  tune RECIPE [--tune.key value ...]      try schedules, loads and splits of the chips in
                                          simulation, and recommend one
  chat MODEL_OR_RUN [--key value ...]     talk to a policy: a run directory, or as for --policy
  audit RUN                               check the log of what a run's sandboxes executed
  recipes                                 list the built-in recipes
  --version                               show the version

Start with: headrace train calculator
"""

NEEDED = {
    "train": "a recipe: headrace train calculator, or a .toml file",
    "sft": "a file of conversations: headrace sft data.jsonl --policy smollm2",
    "prefer": "a file of preferences: headrace prefer pairs.jsonl --policy smollm2",
    "distill": "a file of conversations: headrace distill data.jsonl --teacher smollm2",
    "resume": "a run directory: headrace resume runs/<your run>",
    "simulate": "a recipe or scenario: headrace simulate balanced",
    "tune": "a recipe or scenario: headrace tune balanced",
    "chat": "a policy: headrace chat smollm2, or a run directory",
    "audit": "a run directory: headrace audit runs/<your run>",
}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    os.environ["XLA_FLAGS"] = same_bits_in_every_row(
        os.environ.get("XLA_FLAGS", ""), machine=platform.machine(), jax_version=version("jax")
    )
    try:
        if given[:1] in (["simulate"], ["tune"]):  # only in a process of its own
            from .simulate.timers import collect_rarely

            collect_rarely()
        code = run(given)
        sys.stdout.flush()
    except KeyboardInterrupt:  # before or after the part that handles signals in order
        print("headrace: interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # whoever read has gone, as `head` does
        give_up_output()
        code = 128 + signal.SIGPIPE
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code."""
    match list(arguments):
        case [] | ["-h" | "--help"]:
            print(USAGE, end="")
            return 0
        case ["--version"]:
            print(f"headrace {version('headrace')}")
            return 0
        case [command, "-h" | "--help"] if command in NEEDED:
            print(USAGE, end="")
            return 0
        case [command, name, *flags] if command in NEEDED and not name.startswith("-"):
            return _run_with(command, name, flags)
        case [command, *_] if command in NEEDED:
            return mistake(f"{command} needs {NEEDED[command]}")
        case ["recipes"]:
            from .commands.recipes import recipes

            return recipes()
        case ["recipes" | "--version" as command, *rest]:
            return mistake(f"{command} takes no further arguments, got {' '.join(rest)}")
        case [command, *_]:
            return mistake(f"unknown command {command!r}; see headrace --help")
    raise AssertionError("unreachable: all argument lists are covered")


def _run_with(command: str, name: str, flags: Sequence[str]) -> int:
    """Run a command on a recipe, a policy or a run."""
    match command:
        case "train":
            began_seconds = time.monotonic()
            _ignore_questions()
            from .commands.train import train

            return train(name, flags, began_seconds)
        case "sft" | "prefer" | "distill":
            began_seconds = time.monotonic()
            _ignore_questions()
            from .commands.offline import train_offline

            return train_offline(command, name, flags, began_seconds)
        case "resume":
            began_seconds = time.monotonic()
            _ignore_questions()
            from .commands.resume import resume

            return resume(name, flags, began_seconds)
        case "simulate":
            from .commands.simulate import simulate

            return simulate(name, flags)
        case "tune":
            from .commands.simulate import tune

            return tune(name, flags)
        case "chat":
            from .commands.chat import chat

            return chat(name, flags)
        case "audit":
            from .commands.audit import audit

            return audit(name, flags)
    raise AssertionError(f"unreachable: {command!r} is not in NEEDED")


def _ignore_questions() -> None:
    """Ignore what asks a run for its state: until somebody listens it would kill."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
