"""The evaluations during training: one at a time, each of a version that is held meanwhile."""

from contextlib import ExitStack

import trio

from .errors import stage
from .groups.state import Ledger
from .rollout.group import Flight
from .stages import Stages
from .waits import Waits


class Evaluations:
    """Starts an evaluation when one is due and the last one has ended."""

    def __init__(self, stages: Stages, waits: Waits, *, every: int, steps: int):
        """Args:
        every: updates between two evaluations; 0 makes none.
        steps: after so many updates none is made: another follows the run.
        """
        self.flight = Flight()
        self._stages = stages
        self._waits = waits
        self._every = every
        self._steps = steps
        self._running = False
        self._stopped = False
        self._until_stopped = trio.CancelScope()

    def start_if_due(self, nursery: trio.Nursery, ledger: Ledger) -> None:
        """Measure the newest version, if it is time for that."""
        done, version = ledger.committed, ledger.published
        due = self._every > 0 and done % self._every == 0 and 0 < done < self._steps
        if self._stages.evaluate is None or not due or self._running or self._stopped:
            return
        self._running = True
        held = ExitStack()
        with stage("sampler"):
            held.enter_context(self._stages.hold(version))  # now, while it is the newest
        nursery.start_soon(self._evaluate, version, held)

    def stop(self) -> None:
        """End the one that runs, and start no more."""
        self._stopped = True
        self._until_stopped.cancel()

    async def _evaluate(self, version: int, held: ExitStack) -> None:
        assert self._stages.evaluate is not None
        # It has deadlines of its own.
        with (
            stage("sampler"),
            held,
            self._waits.on("evaluate", f"version {version}"),
            trio.CancelScope() as self._until_stopped,
        ):
            if not self._stopped:
                await self._stages.evaluate(version, self.flight)
        self._running = False
