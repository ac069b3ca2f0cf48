"""What comes before a run's first token: its learner, all programs, and a policy warmed up.

Nothing is compiled afterwards.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

import trio

from .assemble import Parts, conversations, make_convert, make_learner, make_sft_learner
from .config import Recipe
from .learner.service import Learner
from .observe.view import View
from .offline.sft import warm_start
from .policy.start import Finish, Start, compile_final
from .weight_sync import Convert

Preparing = Callable[[str, str], AbstractContextManager[None]]  # a stage, and what it does


class Prepared(NamedTuple):
    """What a run learns with.

    Attributes:
      convert: makes of the learner's parameters what the sampler runs.
      finish: makes of them the policy that is saved.
    """

    learner: Learner
    convert: Convert
    finish: Finish


async def prepare(
    recipe: Recipe,
    parts: Parts,
    start: Start,
    *,
    preparing: Preparing,
    view: View,
    imitates: bool,
) -> Prepared:
    """Make the learner, compile all programs, and warm the policy up by imitation.

    Args:
      parts: their threads run.
      preparing: gives each wait its deadline.
      imitates: whether the policy has still to be warmed up, where the recipe asks for it.
    """

    def on_step(step: int, metrics: Mapping[str, float]) -> None:
        view.phase("warm start", step + 1, recipe.warm_start.steps)

    device = parts.device
    learner: Learner = await device.run(partial(make_learner, recipe, parts, start))
    imitator: Learner | None = None
    if recipe.warm_start.steps > 0 and imitates:
        imitator = await device.run(partial(make_sft_learner, recipe, parts, start))
    view.phase("compiling")
    with preparing("compile", "the programs of sampler and learner"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(learner.compile)
            nursery.start_soon(trio.to_thread.run_sync, parts.sampler.compile)
            if imitator is not None:
                nursery.start_soon(imitator.compile)
        await trio.lowlevel.checkpoint_if_cancelled()  # a compiler can't be interrupted
        convert: Convert = await device.run(partial(make_convert, recipe, parts, start))
        finish: Finish = await device.run(partial(compile_final, parts.policy, start, recipe.lora))
    if imitator is not None:
        with preparing("warm_start", "imitating scripts"):
            scripts = conversations(recipe, parts)
            await warm_start(
                imitator, scripts, parts.renderer, config=recipe.warm_start, on_step=on_step
            )
            await learner.adopt(imitator.params)
    return Prepared(learner, convert, finish)
