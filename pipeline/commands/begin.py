"""How the run of a command that trains begins, in a new directory or where another goes on, and
what is said where it fails.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..checkpoint import Checkpoints
from ..compilation_cache import keep_programs
from ..observe.run_directory import CHECKPOINTS_FOLDER, RunDirectory
from ..observe.view import COLUMNS, Columns, View, ViewKind, open_view
from ..run_config import CommonRunConfig
from .messages import USERS_MISTAKE, say_how_to_go_on


@contextmanager
def begun(
    config: CommonRunConfig,
    directory: RunDirectory | None,
    *,
    steps: int,
    done: int = 0,
    kind: ViewKind,
    columns: Columns = COLUMNS,
) -> Iterator[tuple[RunDirectory, View]]:
    """Give a run its directory and its view.

    Args:
      directory: of a run that goes on, which is held; None: a new one, which is held meanwhile.
      done: updates of `steps` that were taken before.
    """
    keep_programs(config.compilation_cache)
    view = open_view(config.name, steps, done=done, stream=sys.stdout, kind=kind, columns=columns)
    if directory is not None:
        with view as shown:
            yield directory, shown
        return
    directory = RunDirectory.create_for(config.dir, config.name)
    with directory.held(), view as shown:
        yield directory, shown


def note_resumed(view: View, updates: int | None, steps: int, *, may_take_more: bool) -> None:
    """Say where a run goes on.

    Args:
      updates: that were taken; None: there is no checkpoint.
      may_take_more: whether the run may be given more updates than it began with.
    """
    if updates is None:
        view.note("there is no checkpoint to go on from: the run begins again")
        return
    hint = "; --run.steps takes more" if updates == steps and may_take_more else ""
    view.note(f"going on after update {updates} of {steps}{hint}")


def point_to_checkpoint(code: int, where: Path) -> None:
    """Say after an error what there is of a run to go on from.

    Args:
      code: the error's exit code; of a user's mistake nothing is said, it may be the checkpoint.
      where: the run's directory.
    """
    if code != USERS_MISTAKE:
        say_how_to_go_on(where, Checkpoints(where / CHECKPOINTS_FOLDER).latest())
