"""A toy model and packed batches of it, small enough to be read, mixed enough to show leaks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from headrace.pipeline.groups.packing import PackItem, pack
from headrace.pipeline.types import TrainBatch


def _is_known(name: str, value: object) -> bool:
    """Whether this XLA still has an option; each version drops some."""
    program = jax.jit(lambda x: x, compiler_options={name: value})
    try:
        program.lower(1.0).compile()
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return False
    return True


# Unoptimised code, compiled up to ten times faster, for programs that tests run a few times only.
# Not for laws about equal bits: those are of programs as users compile them.
QUICK = {
    name: value
    for name, value in {
        "xla_backend_optimization_level": 0,
        "xla_cpu_use_fusion_emitters": False,
        "xla_cpu_parallel_codegen_split_count": 1,
    }.items()
    if _is_known(name, value)
}
quick_jit = partial(jax.jit, compiler_options=QUICK)

VOCAB = 11
WIDTH = 6


@partial(quick_jit, static_argnums=0)
def toy_params(seed: int = 0) -> dict[str, jax.Array]:
    embedding, mix, head = jax.random.split(jax.random.key(seed), 3)
    return {
        "embedding": jax.random.normal(embedding, (VOCAB, WIDTH)),
        "mix": jax.random.normal(mix, (WIDTH, WIDTH)),
        "head": jax.random.normal(head, (VOCAB, WIDTH)),
    }


def toy_forward(params, tokens, positions, segment_ids):
    """Embedding, plus the mean over the segment so far, through one matrix."""
    x = params["embedding"][tokens] + 0.1 * positions[:, :, None].astype(jnp.float32)
    length = tokens.shape[1]
    earlier = jnp.tril(jnp.ones((length, length), bool))[None]
    same = (segment_ids[:, :, None] == segment_ids[:, None, :]) & earlier
    weights = same.astype(jnp.float32)
    weights = weights / weights.sum(-1, keepdims=True)
    mixed = jnp.einsum("rts,rsd->rtd", weights, x)
    return jnp.tanh(x + mixed @ params["mix"]), params["head"]


def toy_items(lengths=(5, 9, 3, 7, 4, 6, 8, 2), seed: int = 0) -> list[PackItem]:
    rng = np.random.default_rng(seed)
    return [_item(rng, length) for length in lengths]


def _item(rng: np.random.Generator, length: int) -> PackItem:
    mask = rng.random(length) < 0.6
    mask[0], mask[-1] = False, True
    draw = partial(rng.normal, size=length)
    return PackItem(
        tokens=rng.integers(0, VOCAB, length).astype(np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, -2.0 + 0.5 * draw(), 0.0).astype(np.float32),
        advantages=np.where(mask, draw(), 0.0).astype(np.float32),
        log_kept_mass=np.where(mask, -0.1 * (np.arange(length) % 4), 0.0).astype(np.float32),
        lags=np.where(mask, np.arange(length) % 3, 0).astype(np.int32),
    )


def toy_batch(items=None, *, microbatches=4, rows=8, row_tokens=12) -> TrainBatch:
    """Pack items; tests share the default shape, and with it the compiled programs."""
    items = toy_items() if items is None else items
    return pack(items, microbatches=microbatches, rows=rows, row_tokens=row_tokens)


def spread(batch: TrainBatch, used: int) -> TrainBatch:
    """Deal the filled rows of a batch out to `used` microbatches; padding rows fill them up."""
    segments = np.asarray(batch.segment_ids)
    shape = segments.shape
    filled = np.flatnonzero(segments.reshape(-1, shape[2]).any(-1))
    places = np.arange(len(filled)) % used * shape[1] + np.arange(len(filled)) // used

    def move(array):
        moved = np.zeros_like(array).reshape(-1, shape[2])
        moved[places] = array.reshape(-1, shape[2])[filled]
        return moved.reshape(shape)

    return TrainBatch(*map(move, batch[:-2]), microbatches=np.array(used, np.int32))


def oracle_logprobs(params, item: PackItem, temperature: float = 1.0):
    """One sequence at a time in float64: logprobs and entropies; the first token gets 0."""
    p = {name: np.asarray(value, np.float64) for name, value in params.items()}
    x = p["embedding"][item.tokens] + 0.1 * np.arange(len(item.tokens))[:, None]
    counts = np.arange(1, len(x) + 1)[:, None]
    hidden = np.tanh(x + np.cumsum(x, 0) / counts @ p["mix"])
    logits = hidden @ p["head"].T / temperature
    scores = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    entropy = -(np.exp(scores) * scores).sum(-1)
    logprobs = np.zeros(len(x))
    logprobs[1:] = scores[np.arange(len(x) - 1), item.tokens[1:]]
    return logprobs, np.concatenate([[0.0], entropy[:-1]])


def unpacked(array, batch: TrainBatch) -> list[np.ndarray]:
    """Cut an array over tokens into its sequences, in the order of the rows."""
    segments = np.asarray(batch.segment_ids)
    found = []
    for index in np.ndindex(segments.shape[:2]):
        ids = segments[index]
        found += [np.asarray(array)[index][ids == s] for s in range(1, ids.max() + 1)]
    return found
