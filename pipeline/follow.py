"""A process that follows: it prepares as process 0 does, then calls what that one calls."""

import io
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from .assemble import Parts, make_start
from .config import Recipe
from .observe.run_directory import CHECKPOINTS_FOLDER, RunDirectory
from .observe.view import PlainView
from .policy.start import without_params
from .replica import make_replica
from .saved_run import SavedRun
from .saver import Saver
from .waits import Waits


async def follow(
    recipe: Recipe, parts: Parts, directory: RunDirectory | None, saved: SavedRun | None
) -> None:
    """Follow process 0 from its preparation to its end.

    Args:
      parts: from `assemble(recipe, processes)`.
      directory: of a run that goes on.
      saved: of the latest checkpoint there.

    Raises:
      StageFailed: where something fails here and not in process 0, or that one has gone.
    """
    deadline = recipe.controller.prepare_deadline_seconds
    waits, setting = Waits(), "--controller.prepare-deadline-seconds"
    preparing = partial(waits.on, deadline_seconds=deadline, setting=setting)
    folder = Path() if directory is None else directory.path / CHECKPOINTS_FOLDER
    saver = Saver(recipe, parts, folder, saved)
    async with trio.open_nursery() as nursery:
        await nursery.start(parts.sampler.serve)
        start = await parts.device.run(partial(make_start, recipe, parts))
        parts = replace(parts, policy=without_params(parts.policy))
        view = PlainView(recipe.run.steps, stream=io.StringIO())  # process 0 shows what is done
        await make_replica(recipe, parts, start, saver, preparing=preparing, view=view)
        await parts.device.run(parts.processes.calls.follow)
        nursery.cancel_scope.cancel()
