"""The arrays of the batches that a learner is compiled for: one shape, whatever they hold."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ..types import NOT_RECORDED, TrainBatch

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
    experts=np.int16,
)


@dataclass(frozen=True)
class BatchShape:
    """What the compiled programs take.

    Attributes:
      shape: A, R, T.
      replay: L and k where batches record experts, else None.
    """

    shape: tuple[int, int, int]
    replay: tuple[int, int] | None

    def abstract(self) -> TrainBatch:
        """Describe the arrays of a batch to the compiler."""
        dtypes = _DTYPES._asdict()
        fields = {
            name: jax.eval_shape(partial(jnp.zeros, shape, dtypes[name]))
            for name, shape in self._shapes().items()
        }
        return TrainBatch(**fields)

    def with_record(self, batch: TrainBatch) -> TrainBatch:
        """Add a record of no choices where one is expected and the batch has none."""
        if self.replay is None or batch.experts is not None:
            return batch
        nothing = np.full((*self.shape, *self.replay), NOT_RECORDED, np.int16)
        return batch._replace(experts=nothing)

    def check(self, batch: TrainBatch) -> None:
        """Refuse a batch of another shape.

        Raises:
          ValueError: with both shapes.
        """
        arrays = {name: array for name, array in batch._asdict().items() if array is not None}
        found = {name: np.shape(array) for name, array in arrays.items()}
        expected = self._shapes()
        if found != expected:
            raise ValueError(
                "arrays of a batch must have the shapes that the learner was compiled for, "
                f"{expected}, got {found}; pack to {self.shape}, and record experts only with a "
                "rule of `replay`"
            )
        used = int(batch.microbatches)
        if not 0 <= used <= self.shape[0]:
            raise ValueError(f"microbatches must be in 0..{self.shape[0]}, got {used}")

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Give the shape of each array; only what is replayed has experts."""
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(_DTYPES._fields, self.shape)
        shapes["microbatches"] = ()
        if self.replay is None:
            del shapes["experts"]
        else:
            shapes["experts"] = (*self.shape, *self.replay)
        return shapes


def as_numpy(batch: TrainBatch) -> TrainBatch:
    """Give a batch's arrays the types that the programs take."""
    dtypes = _DTYPES._replace(experts=None) if batch.experts is None else _DTYPES
    arrays: TrainBatch = jax.tree.map(np.asarray, batch, dtypes)
    return arrays
