"""The learner as a stage: updates run on a device thread, trio only waits for them.

Invariants: one update at a time, in the order asked; every program is compiled before the
first update, for one shape, so none is ever compiled later; the state is donated, so there is
one copy of parameters and optimizer state.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
import trio

from ..algorithms.inputs import TokenLoss
from ..device_thread import DeviceThread
from ..processes.calls import Calls
from ..types import TrainBatch
from .batch_shape import BatchShape, as_numpy
from .credit import Credit
from .critic import CriticRule, batch_values, critic_step, hidden_width, init_critic
from .distillation import DistillationConfig, Teacher, distilled
from .fingerprint import fingerprint
from .logprobs import Forward, batch_logprobs
from .placement import by_rows, describe_rows, mesh_of, place_rest, place_rows, whole
from .state import LearnerState, Params, described, init_state, with_frozen
from .step import Anchors, Metrics, train_step

NO_TEACHER = DistillationConfig()


@dataclass(frozen=True)
class UpdateRule:
    """What one update does, as functions and plain numbers.

    Attributes:
      forward: the model; see `Forward`, and `train_step` where the learner has frozen parameters.
      loss: the loss per token.
      optimizer: its state belongs to one learner.
      batch_shape: A, R, T of every batch. A bounds the largest batch; a smaller one costs
        only the microbatches that it uses.
      epochs: optimizer steps on each batch.
      temperature: the one that the tokens are sampled with.
      old_logprobs: "recompute" scores the batch with the parameters at the start of the
        update; "rollout" takes what the sampler recorded.
      keep_reference: score each batch also with the parameters that the learner started
        from (for a divergence term); costs a copy of those that are trained, and a forward pass
        an update.
      reference_decay: below 1 the reference follows the policy: after each update it keeps this
        share of itself.
      base_forward: the model without adapters, where the frozen parameters alone are the reference
        that is kept: nothing is copied then. None: the reference is the start.
      credit: makes the batch's advantages, before the first epoch, from what the host has put
        there, the anchors and the critic's values; None leaves them as they are.
      critic: how a value model beside the policy learns; None: there is none.
      distillation: what a learner that has a teacher does with what it says.
      replay: L and k where batches record the experts that tokens took, and all scores of the
        policy and its reference take them again; None: routers choose. A critic's always do.
    """

    forward: Forward
    loss: TokenLoss
    optimizer: optax.GradientTransformation
    batch_shape: tuple[int, int, int]
    epochs: int = 1
    temperature: float = 1.0
    old_logprobs: Literal["recompute", "rollout", "interpolate"] = "recompute"
    keep_reference: bool = False
    reference_decay: float = 1.0
    base_forward: Forward | None = None
    credit: Callable[[TrainBatch, Anchors, jax.Array], Credit] | None = None
    critic: CriticRule | None = None
    distillation: DistillationConfig = NO_TEACHER
    replay: tuple[int, int] | None = None

    @property
    def arrays(self) -> BatchShape:
        """What batches must be like."""
        return BatchShape(self.batch_shape, self.replay)


@dataclass(frozen=True)
class _Programs:
    """All that a learner ever runs, compiled."""

    step: Callable[..., tuple[LearnerState, Metrics]]
    score: Callable[..., jax.Array] | None
    score_reference: Callable[..., jax.Array] | None
    follow: Callable[[Params, Params], Params] | None
    credit: Callable[..., Credit] | None
    values: Callable[..., jax.Array] | None
    teach: Callable[..., tuple[LearnerState, Metrics]] | None
    ask: Callable[..., tuple[jax.Array, Metrics]] | None


class Learner:
    """Holds a `LearnerState` and updates it, batch by batch.

    Where its mesh has devices of several processes, each of them has a learner and makes the same
    calls in the same order, with equal arguments: then all get the same metrics, and each places
    the parts of parameters and batches that its own devices hold.

    Example:
      learner = Learner(params, rule, device)
      await learner.compile()
      metrics = await learner.update(batch)
    """

    def __init__(
        self,
        params: Params,
        rule: UpdateRule,
        device: DeviceThread,
        frozen: Params | None = None,
        *,
        teacher: Teacher | None = None,
        calls: Calls | None = None,
    ) -> None:
        """Start from `params` (copied) with a fresh optimizer state.

        Args:
          params: on a mesh with axes "fsdp", over which rows are cut, and "tensor", they stay as
            they are cut, and everything else goes there; otherwise all goes to their device.
          device: the thread that runs all JAX calls; it must be serving when methods are awaited.
          frozen: parameters that the model has beside those that are trained. They aren't copied,
            and several learners may share them.
          teacher: whose opinion of the sampled tokens is, or adds to, their advantages.
          calls: where the mesh has devices of several processes, what they call together: the
            updates that process 0 asks for.
        """
        self._mesh = mesh = mesh_of(params)
        self._rule = rule
        self._device = device
        self._frozen = place_rest(frozen, mesh)
        if teacher is not None:
            teacher = replace(teacher, params=place_rest(teacher.params, mesh))
        self._teacher = teacher
        self._reference: Params | None = None
        self._critic: LearnerState | None = None
        self._adopt(params)
        self._programs: _Programs | None = None
        self._compiling = threading.Lock()
        self._busy_seconds = 0.0
        self._update_it = (Calls() if calls is None else calls).add("update", self._update)

    @property
    def params(self) -> Params:
        """The trained parameters after the last update.

        The next update deletes these buffers: read them on the device thread, or before it
        starts. `publish` copies, so awaiting it before the next update is enough.
        """
        return self._state.params

    @property
    def state(self) -> LearnerState:
        """The whole state, under the same condition as `params`."""
        state: LearnerState = self._state
        return state

    @property
    def arrays(self) -> dict[str, Any]:
        """All that changes from update to update, under the same condition as `params`."""
        arrays = {"state": self._state, "reference": self._reference, "critic": self._critic}
        return {name: each for name, each in arrays.items() if each is not None}

    @property
    def batch_shape(self) -> tuple[int, int, int]:
        """A, R, T of the batches that `update` takes."""
        return self._rule.batch_shape

    @property
    def busy_seconds(self) -> float:
        """Time spent in updates so far, compilation left out."""
        return self._busy_seconds

    async def adopt(self, params: Params) -> None:
        """Start again from `params` (copied), with a fresh optimizer state."""
        await self._device.run(partial(self._adopt, params))

    def restore(self, read: Callable[[Any], Mapping[str, Any]]) -> None:
        """Go on from saved `arrays`; call it on the device thread.

        Args:
          read: given shapes, types and places of the arrays, gives saved ones like them.
        """
        like = jax.tree.map(described, self.arrays)
        for leaf in jax.tree.leaves(self.arrays):
            leaf.delete()  # room for the saved one
        arrays = read(like)
        self._state = arrays["state"]
        self._reference, self._critic = arrays.get("reference"), arrays.get("critic")

    def fixed_sha256(self) -> str:
        """Hash what `arrays` doesn't have: frozen parameters and those of the teacher."""
        teacher = None if self._teacher is None else self._teacher.params
        return fingerprint((self._frozen, teacher))

    async def compile(self) -> None:
        """Compile all programs, once; the first update does it where nobody else did.

        On a worker thread, so that several learners and samplers can compile at once.
        """
        await trio.to_thread.run_sync(self._compile)

    async def update(self, batch: TrainBatch) -> dict[str, float]:
        """Train `epochs` times on one batch.

        If the caller is cancelled the update still ends, and its metrics are lost.

        Args:
          batch: NumPy or JAX arrays of exactly the rule's shape. Where experts are replayed, one
            without a record lets the router choose.

        Returns:
          The metrics of the last epoch, but the mismatch between learner and sampler of the
          first: it is about the policy that came in.

        Raises:
          ValueError: the batch has another shape than the compiled programs.
        """
        batch = self._rule.arrays.with_record(batch)
        self._rule.arrays.check(batch)
        return await self._device.run(partial(self._update_it, batch))

    def _adopt(self, params: Params) -> None:
        rule, mesh = self._rule, self._mesh
        params = place_rest(params, mesh)
        own = jax.tree.map(jnp.copy, params)
        self._state = place_rest(init_state(own, rule.optimizer), mesh)
        if rule.keep_reference and rule.base_forward is None:
            self._reference = jax.tree.map(jnp.copy, params)
        if rule.critic is not None:
            both, batch = with_frozen(params, self._frozen), rule.arrays.abstract()
            critic = init_critic(params, hidden_width(rule.forward, both, batch))
            self._critic = place_rest(init_state(critic, rule.critic.optimizer), mesh)

    def _compile(self) -> None:
        with self._compiling:
            if self._programs is None:
                self._programs = self._compile_programs()

    def _compile_programs(self) -> _Programs:
        rule, mesh = self._rule, self._mesh
        batch = describe_rows(rule.arrays.abstract(), mesh)
        logprobs = batch.rollout_logprobs
        step = partial(
            train_step,
            forward=rule.forward,
            loss=rule.loss,
            optimizer=rule.optimizer,
            temperature=rule.temperature,
        )
        anchors, params = Anchors(logprobs, logprobs), self._state.params
        score, score_reference = self._compile_scores(batch)
        follow = partial(_moving_average, decay=rule.reference_decay)
        follows = rule.keep_reference and rule.reference_decay < 1
        teach, values = self._compile_critic(batch)
        stepped = _places(self._state), whole(mesh)
        operands = self._state, batch, anchors, self._frozen
        credited = (batch, anchors, logprobs)
        return _Programs(
            step=_compiled(step, *operands, out=stepped, donate=0),
            score=score,
            score_reference=score_reference,
            follow=_compiled(follow, params, params, out=_places(params), donate=0)
            if follows
            else None,
            credit=_compiled(rule.credit, *credited, out=by_rows(mesh)) if rule.credit else None,
            values=values,
            teach=teach,
            ask=self._compile_teacher(batch),
        )

    def _compile_scores(self, batch: TrainBatch) -> tuple[Any, Any]:
        """Compile what scores the policy and the reference: one program, but for the base's."""
        rule, policy, rows = self._rule, None, by_rows(self._mesh)
        score = partial(batch_logprobs, temperature=rule.temperature)
        of_start = rule.keep_reference and rule.base_forward is None
        if rule.old_logprobs == "recompute" or of_start:
            both = with_frozen(self._state.params, self._frozen)
            policy = _compiled(partial(score, forward=rule.forward), both, batch, out=rows)
        if not rule.keep_reference or rule.base_forward is None:
            return policy, policy if of_start else None
        of_base = partial(score, forward=rule.base_forward)
        return policy, _compiled(of_base, self._frozen, batch, out=rows)

    def _compile_teacher(self, batch: TrainBatch) -> Any:
        if self._teacher is None:
            return None
        rule, teacher = self._rule, self._teacher
        ask = partial(
            distilled,
            forward=teacher.forward,
            config=rule.distillation,
            temperature=rule.temperature,
        )
        told = by_rows(self._mesh), whole(self._mesh)
        return _compiled(ask, teacher.params, batch, batch.rollout_logprobs, out=told)

    def _compile_critic(self, batch: TrainBatch) -> tuple[Any, Any]:
        critic, rule, mesh = self._critic, self._rule, self._mesh
        if critic is None or rule.critic is None:
            return None, None
        step = partial(critic_step, forward=rule.forward, rule=rule.critic)
        values = partial(batch_values, forward=rule.forward)
        operands, stepped = (critic, batch, batch.advantages), (_places(critic), whole(mesh))
        return (
            _compiled(step, *operands, self._frozen, out=stepped, donate=0),
            _compiled(values, critic.params, batch, self._frozen, out=by_rows(mesh)),
        )

    def _update(self, batch: TrainBatch) -> dict[str, float]:
        self._compile()
        assert self._programs is not None
        started = time.perf_counter()
        batch = place_rows(as_numpy(batch), self._mesh)
        anchors = self._anchors(batch, self._programs)
        epochs = list(self._epochs(batch, anchors, self._programs))
        if self._programs.follow is not None:
            self._reference = self._programs.follow(self._reference, self._state.params)
        first, last = jax.device_get((epochs[0], epochs[-1]))  # waits for the device
        self._busy_seconds += time.perf_counter() - started
        return {
            name: float((first if name.startswith("mismatch") else last)[name]) for name in last
        }

    def _epochs(
        self, batch: TrainBatch, anchors: Anchors, programs: _Programs
    ) -> Iterator[Metrics]:
        """Take the optimizer steps of one batch, each on demand."""
        values = batch.advantages  # of the right shape, and unused where there is no critic
        if programs.values is not None and self._critic is not None:
            values = programs.values(self._critic.params, batch, self._frozen)
        lesson = batch
        if programs.credit is not None:
            credit = programs.credit(batch, anchors, values)
            batch = batch._replace(advantages=credit.advantages)
            lesson = lesson._replace(advantages=credit.returns)
        told: Metrics = {}
        if programs.ask is not None and self._teacher is not None:
            advantages, told = programs.ask(self._teacher.params, batch, anchors.old)
            batch = batch._replace(advantages=advantages)
        for _ in range(self._rule.epochs):
            self._state, metrics = programs.step(self._state, batch, anchors, self._frozen)
            if programs.teach is not None:
                self._critic, more = programs.teach(self._critic, lesson, values, self._frozen)
                metrics = metrics | more
            yield metrics | told

    def _anchors(self, batch: TrainBatch, programs: _Programs) -> Anchors:
        old = ref = batch.rollout_logprobs
        if programs.score is not None and self._rule.old_logprobs == "recompute":
            old = programs.score(with_frozen(self._state.params, self._frozen), batch)
        if programs.score_reference is not None:
            # Without a copy it is the base: the frozen parameters as they are.
            mine = self._frozen
            if self._reference is not None:
                mine = with_frozen(self._reference, self._frozen)
            ref = programs.score_reference(mine, batch)
        return Anchors(old, ref)


def _compiled(
    function: Callable[..., Any], *operands: Any, out: Any, donate: int | None = None
) -> Any:
    """Compile a function for operands like these; the program takes them in this order.

    Args:
      out: shardings of the results.
    """
    donated = () if donate is None else donate
    jitted = jax.jit(function, donate_argnums=donated, out_shardings=out)
    return jitted.lower(*operands).compile()


def _places(tree: Any) -> Any:
    """Say where each array of a tree lies."""
    return jax.tree.map(lambda leaf: leaf.sharding, tree)


def _moving_average(reference: Params, params: Params, *, decay: float) -> Params:
    """Keep a share of the reference and take the rest from the policy."""

    def follow(old: jax.Array, new: jax.Array) -> jax.Array:
        return (decay * old + (1.0 - decay) * new).astype(old.dtype)

    return jax.tree.map(follow, reference, params)
