"""Commands that train in several processes: how these meet, and how some follow."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TypeVar

import jax

from ..compilation_cache import keep_programs
from ..config import Recipe
from ..errors import ConfigError, HeadraceError
from ..kept_settings import differences
from ..observe.run_directory import POLICY_FOLDER, RunDirectory
from ..offline.config import OfflineRecipe
from ..policy.save import remove_unfinished
from ..processes import JOIN_SECONDS, Processes, join
from ..supervise import end_without_threads
from .messages import explain, say

T = TypeVar("T")

END_SECONDS = 10.0  # for foreign threads, once all is said

# The settings that only process 0 uses, and the one that tells them apart.
_OWN = ("mesh.process", "run.compilation_cache", "run.dir", "run.predict", "run.view")


@contextmanager
def joined(recipe: Recipe | OfflineRecipe) -> Iterator[Processes]:
    """Join the processes of a run, if it has several; an error inside ends all of them.

    Raises:
      ConfigError: where they don't find each other, or weren't started alike.
    """
    mesh = recipe.mesh
    if mesh.coordinator is not None:
        say(f"waiting for the other processes at {mesh.coordinator}, at most {JOIN_SECONDS} s")
    processes = join(mesh.coordinator, mesh.processes, mesh.process)
    try:
        _check_alike(processes, recipe)
        yield processes
    except BaseException as error:
        processes.fail(error)
        ended(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)
        raise


@contextmanager
def joined_again(recipe: Recipe | OfflineRecipe, directory: RunDirectory) -> Iterator[Processes]:
    """Join the processes of a run that goes on in its directory, which process 0 holds."""
    with joined(recipe) as processes:
        if processes.follower is not None:
            yield processes
            return
        with directory.held():
            remove_unfinished(directory.path / POLICY_FOLDER)
            yield processes


def ended(code: int) -> int:
    """Return an exit code that this process is to end with, without waiting for others.

    JAX's own end would wait for all that it has joined, also for those that have gone, and then
    abort. One that is called later decides.
    """
    if jax.distributed.is_initialized():
        end_without_threads(code, after_seconds=END_SECONDS)
    return code


def _check_alike(processes: Processes, recipe: Recipe | OfflineRecipe) -> None:
    mine = {**asdict(recipe), "jax": jax.__version__}
    theirs = _of_process_0(processes, mine)
    other = differences(theirs, mine, _OWN)
    if other:
        each = (f"{name} is {one!r} there and {own!r} here" for name, (one, own) in other.items())
        raise ConfigError(
            f"process {processes.index} must be as process 0, but {', '.join(each)}; start all "
            "with one command"
        )


def check_same_step(processes: Processes, mine: int | None) -> None:
    """Refuse to go on from another checkpoint than process 0.

    Args:
      mine: updates of the one that this process finds; None: there is none.

    Raises:
      ConfigError: then, as on a file system that shows new files late.
    """
    theirs = _of_process_0(processes, mine)
    if theirs != mine:
        raise ConfigError(
            f"process {processes.index} finds the checkpoint of {mine} updates, process 0 that of "
            f"{theirs}; let all have one folder, and try again"
        )


def follow(
    processes: Processes, as_process_0: Callable[[], None], *, compilation_cache: str | None
) -> int:
    """Do what process 0 does, until it ends; return the exit code.

    Args:
      as_process_0: prepares as it does and follows its calls.
    """
    keep_programs(compilation_cache)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # process 0 gets it too, and ends the run in order
    who = f"process {processes.index} of {processes.count}"
    say(f"{who} follows process 0")
    try:
        as_process_0()
    except (HeadraceError, BaseExceptionGroup) as error:
        return ended(explain(processes.fail(error)))
    processes.end()
    say(f"{who}: process 0 has ended the run")
    return ended(0)


def _of_process_0(processes: Processes, mine: T) -> T:
    return processes.calls.share(None if processes.follower else lambda: mine)()
