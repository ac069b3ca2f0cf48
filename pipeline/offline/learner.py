"""Holds a policy that learns without rollouts: plain calls, all on one thread.

Invariants: every program is compiled before the first update, for one shape; the state is
donated, so there is one copy of the trained parameters and the optimizer's state. The reference is
the policy that the run starts from: beside adapters it costs a copy of the adapters alone. All
arrays stay where they were put on the mesh.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from numpy.typing import NDArray

from ...sharding.partition import shard
from ..learner.fingerprint import fingerprint
from ..learner.logprobs import Forward, batch_logprobs
from ..learner.placement import by_rows, place_rest, place_rows, whole
from ..learner.state import LearnerState, Params, described, init_state, with_frozen
from ..types import TrainBatch
from .batch import OfflineBatch
from .objectives import Objective
from .step import Fixed, measure, measure_baseline, offline_step


@dataclass(frozen=True)
class OfflineRule:
    """What an update does, as functions.

    Attributes:
      forward: of the policy, to score the reference by.
      objective: of updates.
      measurement: of held-out rows, and all that it measures are means; None: there are no such
        rows.
      optimizer: makes the updates.
      needs_reference: whether the objective compares with the policy at the start.
      empty: a batch without anything in it, of the shape that all batches have.
      mesh: where everything lies.
      mismatched: the same of what a baseline is measured on, of the same shape; None: there is no
        baseline.
    """

    forward: Forward
    objective: Objective
    measurement: Objective | None
    optimizer: optax.GradientTransformation
    needs_reference: bool
    empty: OfflineBatch
    mesh: Mesh
    mismatched: TrainBatch | None = None


@dataclass(frozen=True)
class _Programs:
    step: Callable[..., tuple[LearnerState, dict[str, jax.Array]]]
    measure: Callable[..., Any] | None
    score: Callable[..., jax.Array] | None
    baseline: Callable[..., jax.Array] | None


class OfflineLearner:
    """Learns batch by batch; call all methods on one thread.

    Example:
      learner = OfflineLearner(place(params, axes, rule.mesh), rule)
      learner.compile()
      metrics = learner.update(batch)
    """

    def __init__(
        self,
        params: Params,
        rule: OfflineRule,
        *,
        frozen: Params | None = None,
        teacher: Params | None = None,
    ) -> None:
        """Start from `params`, which lie on the mesh and belong to the learner from now on.

        Args:
          frozen: parameters that the model has beside those that are trained; on the mesh, too.
          teacher: parameters that the objective takes; on the mesh, too.
        """
        self._rule = rule
        self._frozen = frozen
        self._teacher = teacher
        self._reference = params if rule.needs_reference else None
        own = jax.tree.map(jnp.copy, params) if rule.needs_reference else params
        self._state = place_rest(init_state(own, rule.optimizer), rule.mesh)
        self._programs: _Programs | None = None
        self.busy_seconds = 0.0

    @property
    def params(self) -> Params:
        """The trained parameters; the next update deletes these buffers."""
        return self._state.params

    @property
    def state(self) -> LearnerState:
        """All that changes from update to update, under the same condition."""
        state: LearnerState = self._state
        return state

    def restore(self, read: Callable[[LearnerState], LearnerState]) -> None:
        """Go on from a saved state.

        Args:
          read: given shapes, types and places of the state, gives a saved one like it.
        """
        like = jax.tree.map(described, self._state)
        for leaf in jax.tree.leaves(self._state):
            leaf.delete()  # room for the saved one
        self._state = read(like)

    def fixed_sha256(self) -> str:
        """Hash what a saved state doesn't have: frozen parameters, reference and teacher."""
        return fingerprint((self._frozen, self._reference, self._teacher))

    def compile(self) -> None:
        """Compile all programs, once."""
        if self._programs is not None:
            return
        rule, batch, params = self._rule, self._placed(self._rule.empty), self.params
        everywhere, rows = whole(rule.mesh), by_rows(rule.mesh)
        fixed = self._fixed(batch, abstract=True)
        step = partial(offline_step, objective=rule.objective, optimizer=rule.optimizer)
        measured = score = baseline = None
        if rule.measurement is not None:
            measuring = partial(measure, objective=rule.measurement)
            measured = _compiled(measuring, params, batch, fixed, out=everywhere)
        if rule.needs_reference:
            scoring = partial(batch_logprobs, forward=rule.forward)
            trained = with_frozen(params, self._frozen)
            score = _compiled(scoring, trained, batch.rows, out=rows)
        if rule.mismatched is not None:
            other = place_rows(rule.mismatched, rule.mesh)
            logprobs = other.rollout_logprobs
            baseline = _compiled(measure_baseline, logprobs, logprobs, other, out=everywhere)
        stays = jax.tree.map(lambda leaf: leaf.sharding, self._state)
        step = _compiled(step, self._state, batch, fixed, donate=(0,), out=(stays, everywhere))
        self._programs = _Programs(step, measured, score, baseline)

    def update(
        self, batch: OfflineBatch, mismatched: TrainBatch | None = None
    ) -> dict[str, float]:
        """Take one optimizer step.

        Args:
          batch: of the rule's shape.
          mismatched: what a baseline is measured on.

        Returns:
          The metrics, when the device is done.
        """
        programs = self._compiled_programs()
        started = time.perf_counter()
        batch = self._placed(batch)
        fixed = self._fixed(batch, mismatched)
        self._state, metrics = programs.step(self._state, batch, fixed)
        found = jax.device_get(metrics)
        self.busy_seconds += time.perf_counter() - started
        return {name: float(value) for name, value in found.items()}

    def evaluate(
        self, batches: Iterable[tuple[OfflineBatch, TrainBatch | None]]
    ) -> dict[str, float]:
        """Measure the loss and more on batches, each weighed by what it counts; learn nothing."""
        programs = self._compiled_programs()
        assert programs.measure is not None, "there is a measurement"
        # Of each measurement the total and the count; of the loss, weighed by what counts.
        sums: dict[str, NDArray[np.float64]] = {}
        for packed, mismatched in batches:
            batch = self._placed(packed)
            fixed = self._fixed(batch, mismatched)
            loss, counts, found = jax.device_get(programs.measure(self.params, batch, fixed))
            weight = float(counts.chosen + counts.rejected or counts.tokens)
            pairs = {name: (each["total"], each["count"]) for name, each in found.items()}
            for name, pair in {"loss": (loss * weight, weight), **pairs}.items():
                sums[name] = sums.get(name, np.zeros(2)) + np.array(pair, np.float64)
        return {name: float(total / max(count, 1.0)) for name, (total, count) in sums.items()}

    def _compiled_programs(self) -> _Programs:
        self.compile()
        assert self._programs is not None
        return self._programs

    def _placed(self, batch: OfflineBatch) -> OfflineBatch:
        mesh = self._rule.mesh
        judged = shard((batch.chosen, batch.rejected), whole(mesh))
        return OfflineBatch(place_rows(batch.rows, mesh), *judged)

    def _fixed(
        self, batch: OfflineBatch, mismatched: TrainBatch | None = None, *, abstract: bool = False
    ) -> Fixed:
        ref = baseline = None
        if self._rule.needs_reference:
            ref = (
                batch.rows.rollout_logprobs
                if abstract
                else self._score(self._reference, batch.rows)
            )
        if self._rule.mismatched is not None:
            zero = shard(np.float32(0), whole(self._rule.mesh))
            baseline = zero if mismatched is None else self._baseline(mismatched)
        return Fixed(ref, baseline, self._frozen, self._teacher)

    def _baseline(self, rows: TrainBatch) -> jax.Array:
        baseline = self._compiled_programs().baseline
        assert baseline is not None, "there is a baseline"
        rows = place_rows(rows, self._rule.mesh)
        policy, reference = (self._score(it, rows) for it in (self.params, self._reference))
        return baseline(policy, reference, rows)

    def _score(self, params: Params, rows: TrainBatch | None) -> jax.Array:
        score = self._compiled_programs().score
        assert score is not None, "there is a reference"
        return score(with_frozen(params, self._frozen), rows)


def _compiled(
    function: Callable[..., Any], *operands: Any, out: Any, donate: tuple[int, ...] = ()
) -> Any:
    """Compile a function for operands like these; the program takes them in this order.

    Args:
      out: shardings of the results.
    """
    jitted = jax.jit(function, donate_argnums=donate, out_shardings=out)
    return jitted.lower(*operands).compile()
