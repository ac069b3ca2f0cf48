"""What every process of a run has of it: a learner, the sampler, and what is done with them.

Processes prepare alike, one call after the other, without a word. From then on process 0 decides
what is called, and its followers do the same: see `processes.calls`.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..sharding.partition import on_host
from .assemble import Parts
from .config import Recipe
from .controller_state import ControllerState
from .learner.fingerprint import fingerprint
from .learner.state import Params
from .observe.view import View
from .policy.save import save_policy
from .policy.start import Start
from .preparation import Prepared, Preparing, prepare
from .saver import Saver


class Replica:
    """A learner with its programs, once all is compiled and the policy is warmed up.

    Attributes:
      learner: of the reinforcement-learning phase.
      export: `export(version)` makes of the learner's parameters what the sampler takes, and lays
        it ready there.
      fingerprint: hashes the learner's parameters.
      save: `save(folder)` saves the policy as it is.
    """

    def __init__(
        self, parts: Parts, prepared: Prepared, saver: Saver, state: ControllerState | None
    ):
        """Use `make_replica`."""
        self._parts = parts
        self._saver = saver
        self.learner, self._convert, self._finish = prepared
        self._state = state
        calls = parts.processes.calls
        self.export: Callable[[int], Params] = calls.add("export", self._export)
        self.fingerprint = calls.add("fingerprint", self._fingerprint)
        self.save = calls.add("save policy", self._save)

    def take_state(self) -> ControllerState | None:
        """Hand over, once, where the run goes on; None: it begins."""
        state, self._state = self._state, None
        return state

    def gather_once(self) -> None:
        """Compile what gathers arrays from several processes: nothing shall compile later."""
        params = self.learner.params
        on_host((self.learner.arrays, self._convert(params)), keep=False)
        save_policy(self._finish(params), Path(), writes=False)

    def _export(self, version: int) -> Params:
        saved = self._saver.take_held(version)
        params = self._convert(self.learner.params) if saved is None else saved
        self._parts.sampler.bring(params, version)
        return params

    def _fingerprint(self) -> str:
        return fingerprint(self.learner.params)

    def _save(self, folder: Path) -> None:
        writes = self._parts.processes.index == 0
        save_policy(self._finish(self.learner.params), folder, replace=True, writes=writes)


async def make_replica(
    recipe: Recipe, parts: Parts, start: Start, saver: Saver, *, preparing: Preparing, view: View
) -> Replica:
    """Make the learner, compile all programs, warm the policy up or bring it to where it was.

    Args:
      parts: their threads run.
      start: from `make_start`.
      preparing: gives each wait its deadline.
    """
    imitates = saver.begins
    prepared = await prepare(
        recipe, parts, start, preparing=preparing, view=view, imitates=imitates
    )
    with preparing("checkpoint", "reading it, or hashing what it must fit"):
        begin = partial(saver.begin, prepared.learner, prepared.convert)
        state = await parts.device.run(begin)
    replica = Replica(parts, prepared, saver, state)
    if parts.processes.count > 1:
        await parts.device.run(replica.gather_once)
    return replica
