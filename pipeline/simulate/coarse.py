"""Long texts made cheap to simulate: one simulated token stands for many.

Invariant: times don't change, but for rounding lengths to whole grains. A decode step of one
coarse token takes as long as the steps of the tokens that it stands for.
"""

from dataclasses import dataclass, replace

from ...envs.base import Task
from ..rollout.config import RolloutConfig
from .scenarios import Packing, Simulation
from .speeds import LearnerCosts
from .workload import Script

LONGEST_TOKENS = 1024  # of an episode, beyond which its lists are most of a simulation's work


def fitting_grain(rollout: RolloutConfig) -> int:
    """Return the smallest grain with which episodes stay below `LONGEST_TOKENS`.

    Example:
      >>> fitting_grain(RolloutConfig(max_tokens=32_768)), fitting_grain(RolloutConfig())
      (32, 1)
    """
    return -(-rollout.max_tokens // LONGEST_TOKENS)


def coarsen(simulation: Simulation, grain: int) -> Simulation:
    """Return the simulation in which one token stands for `grain` of them."""
    if grain == 1:
        return simulation
    rollout, packing = simulation.rollout, simulation.packing
    workload = simulation.workload
    return replace(
        simulation,
        rollout=replace(
            rollout,
            max_tokens=max(2, _ceil(rollout.max_tokens, grain)),
            max_turn_tokens=_ceil(rollout.max_turn_tokens, grain),
        ),
        workload=replace(workload, script=CoarseScript(workload.script, grain)),
        sampler=simulation.sampler.coarsened(grain),
        learner=LearnerCosts(
            simulation.learner.update_seconds, simulation.learner.token_seconds * grain
        ),
        packing=packing and Packing(packing.microbatch_rows, _ceil(packing.row_tokens, grain)),
    )


@dataclass(frozen=True)
class CoarseScript:
    """Another script with lengths in grains; nothing has less than one."""

    inner: Script
    grain: int

    def turns(self, task: Task, member: int) -> int:
        """Return the inner script's."""
        return self.inner.turns(task, member)

    def prompt_tokens(self, task: Task, member: int) -> int:
        """Return the inner script's, in grains."""
        return self._grains(self.inner.prompt_tokens(task, member))

    def latency_seconds(self, task: Task, member: int, turn: int) -> float:
        """Return the inner script's."""
        return self.inner.latency_seconds(task, member, turn)

    def sampled_tokens(self, task: Task, member: int, turn: int) -> int:
        """Return the inner script's, in grains."""
        return self._grains(self.inner.sampled_tokens(task, member, turn))

    def observed_tokens(self, task: Task, member: int, turn: int) -> int:
        """Return the inner script's, in grains."""
        return self._grains(self.inner.observed_tokens(task, member, turn))

    def _grains(self, tokens: int) -> int:
        return max(1, round(tokens / self.grain))


def _ceil(tokens: int, grain: int) -> int:
    return -(-tokens // grain)
