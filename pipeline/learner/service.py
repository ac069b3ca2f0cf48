"""The learner as a stage: updates run on a device thread, trio only waits for them.

Invariants: one update at a time, in the order asked; every program is compiled before the
first update, for one shape, so none is ever compiled later; the state is donated, so there is
one copy of parameters and optimizer state.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import trio

from ..algorithms.inputs import TokenLoss
from ..device_thread import DeviceThread
from ..types import TrainBatch
from .logprobs import Forward, batch_logprobs
from .state import LearnerState, Params, init_state, with_frozen
from .step import Anchors, Metrics, train_step

_DTYPES = TrainBatch(
    tokens=np.int32,
    segment_ids=np.int32,
    positions=np.int32,
    loss_mask=np.bool_,
    rollout_logprobs=np.float32,
    log_kept_mass=np.float32,
    lags=np.int32,
    advantages=np.float32,
    microbatches=np.int32,
)


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
    """

    forward: Forward
    loss: TokenLoss
    optimizer: optax.GradientTransformation
    batch_shape: tuple[int, int, int]
    epochs: int = 1
    temperature: float = 1.0
    old_logprobs: Literal["recompute", "rollout", "interpolate"] = "recompute"
    keep_reference: bool = False


class Learner:
    """Holds a `LearnerState` and updates it, batch by batch.

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
    ) -> None:
        """Start from `params` (copied) with a fresh optimizer state.

        Args:
          device: the thread that runs all JAX calls; it must be serving when methods are awaited.
          frozen: parameters that the model has beside those that are trained. They aren't copied,
            and several learners may share them.
        """
        self._rule = rule
        self._device = device
        self._frozen = frozen
        self._reference: Params | None = None
        self._adopt(params)
        self._step: Callable[..., tuple[LearnerState, Metrics]] | None = None
        self._score: Callable[..., jax.Array] | None = None
        self._compiling = threading.Lock()
        self._busy_seconds = 0.0

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
        return self._state

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

    async def compile(self) -> None:
        """Compile all programs, once; the first update does it where nobody else did.

        On a worker thread, so that several learners and samplers can compile at once.
        """
        await trio.to_thread.run_sync(self._compile)

    async def update(self, batch: TrainBatch) -> dict[str, float]:
        """Train `epochs` times on one batch.

        If the caller is cancelled the update still ends, and its metrics are lost.

        Args:
          batch: NumPy or JAX arrays of exactly the rule's shape.

        Returns:
          The metrics of the last epoch, but the mismatch between learner and sampler of the
          first: it is about the policy that came in.

        Raises:
          ValueError: the batch has another shape than the compiled programs.
        """
        _check_shape(batch, self._rule.batch_shape)
        return await self._device.run(partial(self._update, batch))

    def _adopt(self, params: Params) -> None:
        own = jax.tree.map(jnp.copy, params)
        self._state = init_state(own, self._rule.optimizer)
        if self._rule.keep_reference:
            self._reference = jax.tree.map(jnp.copy, params)

    def _compile(self) -> None:
        with self._compiling:
            if self._step is None:
                self._compile_programs()

    def _compile_programs(self) -> None:
        rule = self._rule
        batch = _abstract_batch(rule.batch_shape)
        logprobs = batch.rollout_logprobs
        step = partial(
            train_step,
            forward=rule.forward,
            loss=rule.loss,
            optimizer=rule.optimizer,
            temperature=rule.temperature,
        )
        score = partial(batch_logprobs, forward=rule.forward, temperature=rule.temperature)
        lowered = jax.jit(step, donate_argnums=0).lower(
            self._state, batch, Anchors(logprobs, logprobs), self._frozen
        )
        if rule.old_logprobs == "recompute" or rule.keep_reference:
            whole = with_frozen(self._state.params, self._frozen)
            self._score = jax.jit(score).lower(whole, batch).compile()
        self._step = lowered.compile()

    def _update(self, batch: TrainBatch) -> dict[str, float]:
        self._compile()
        assert self._step is not None
        started = time.perf_counter()
        batch = jax.device_put(jax.tree.map(np.asarray, batch, _DTYPES))
        anchors = self._anchors(batch)
        epochs = []
        for _ in range(self._rule.epochs):
            self._state, metrics = self._step(self._state, batch, anchors, self._frozen)
            epochs.append(metrics)
        first, last = jax.device_get((epochs[0], epochs[-1]))  # waits for the device
        self._busy_seconds += time.perf_counter() - started
        return {
            name: float((first if name.startswith("mismatch") else last)[name]) for name in last
        }

    def _anchors(self, batch: TrainBatch) -> Anchors:
        old = ref = batch.rollout_logprobs
        if self._score is not None and self._rule.old_logprobs == "recompute":
            old = self._score(with_frozen(self._state.params, self._frozen), batch)
        if self._score is not None and self._reference is not None:
            ref = self._score(with_frozen(self._reference, self._frozen), batch)
        return Anchors(old, ref)


def _abstract_batch(shape: tuple[int, int, int]) -> TrainBatch:
    """Describe the arrays of a batch to the compiler."""
    fields = {
        name: jax.eval_shape(partial(jnp.zeros, () if name == "microbatches" else shape, dtype))
        for name, dtype in _DTYPES._asdict().items()
    }
    return TrainBatch(**fields)


def _check_shape(batch: TrainBatch, shape: tuple[int, int, int]) -> None:
    found = {name: np.shape(array) for name, array in batch._asdict().items()}
    expected = {name: () if name == "microbatches" else shape for name in found}
    if found != expected:
        raise ValueError(
            f"arrays of a batch must have the shape {shape} that the learner was compiled for, "
            f"got {found}; pack to that shape"
        )
    used = int(batch.microbatches)
    if not 0 <= used <= shape[0]:
        raise ValueError(f"microbatches must be in 0..{shape[0]}, got {used}")
