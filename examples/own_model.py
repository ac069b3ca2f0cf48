"""A flax module of your own as the policy: sampled by the sampler, trained by the learner.

The module is written once, over `attend`, which the sampler gives (its cache) and `attend_packed`
(packed rows). The task: go on with the alphabet.

Run: python examples/own_model.py
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import trio
from flax import nnx

from headrace import Completion, SampleRequest
from headrace.pipeline.algorithms.losses import sft_loss
from headrace.pipeline.groups.packing import PackItem, pack
from headrace.pipeline.learner.service import Learner, UpdateRule
from headrace.pipeline.models.attention import Heads, Sight
from headrace.pipeline.models.model import AttentionShape, Cached, Model
from headrace.pipeline.models.packed import attend_packed
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.service import NativeSampler
from headrace.pipeline.weight_sync import compile_convert, publish

LETTERS, WIDTH, HEADS, LAYERS = 8, 32, 4, 2
ANSWER, GROUP_SIZE = 4, 16
SIZES = SamplerConfig(rows=64, context_tokens=8, prefill_tokens=4, page_tokens=4)
BATCH_SHAPE = (4, 32, 1 + ANSWER)  # of LETTERS * GROUP_SIZE rows


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        heads = (HEADS, WIDTH // HEADS)
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.to_heads = nnx.LinearGeneral(WIDTH, (3, *heads), rngs=rngs)
        self.from_heads = nnx.LinearGeneral(heads, WIDTH, axis=(-2, -1), rngs=rngs)
        self.ffn = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array, cache: Any, attend: Any) -> tuple[jax.Array, Any]:
        queries, keys, values = jnp.moveaxis(self.to_heads(self.norm(x)), -3, 0)
        mixed, cache = attend(cache, Heads(queries, keys, values), Sight())
        x = x + self.from_heads(mixed)
        return x + self.ffn(jax.nn.gelu(x)), cache


class Policy(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.letters = nnx.Embed(LETTERS, WIDTH, rngs=rngs)
        self.places = nnx.Embed(SIZES.cache_tokens, WIDTH, rngs=rngs)
        self.layers = nnx.List(Layer(rngs) for _ in range(LAYERS))
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Embed(LETTERS, WIDTH, rngs=rngs)

    def __call__(
        self, tokens: jax.Array, positions: jax.Array, caches: list[Any], attend: Any
    ) -> tuple[jax.Array, list[Any]]:
        x = self.letters(tokens) + self.places(positions)
        new_caches = []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, new_cache = layer(x, cache, attend)
            new_caches.append(new_cache)
        return self.norm(x), new_caches


def own_model() -> Model:
    """The module as pure functions: its graph is fixed, its parameters go in and out."""
    graph, _ = nnx.split(nnx.eval_shape(lambda: Policy(nnx.Rngs(0))))

    def init(key: jax.Array) -> nnx.State:
        return nnx.state(Policy(nnx.Rngs(key)), nnx.Param)

    def forward(
        params: nnx.State, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        policy = nnx.merge(graph, params)
        hidden, _ = policy(tokens, positions, [None] * LAYERS, attend_packed(segment_ids))
        return hidden, policy.head.embedding[...]

    def forward_cached(
        params: nnx.State, caches: list[Any], tokens: Any, positions: Any, *, attend: Any
    ) -> tuple[jax.Array, list[Any]]:
        return nnx.merge(graph, params)(tokens, positions, caches, attend)

    def logits(params: nnx.State, hidden: jax.Array) -> jax.Array:
        return nnx.merge(graph, params).head.attend(hidden)

    shape = AttentionShape(LAYERS, num_heads=HEADS, num_kv_heads=HEADS, head_width=WIDTH // HEADS)
    return Model(LETTERS, init, forward, cached=Cached(shape, forward_cached, logits))


def make_requests(version: int) -> list[SampleRequest]:
    """Each letter as a prompt, GROUP_SIZE times."""
    prompts = np.repeat(np.arange(LETTERS, dtype=np.int32), GROUP_SIZE)
    return [
        SampleRequest(prompt[None], max_tokens=ANSWER, stop_ids=(), key=(version, number))
        for number, prompt in enumerate(prompts)
    ]


def make_items(
    requests: Sequence[SampleRequest], completions: Sequence[Completion]
) -> tuple[list[PackItem], float]:
    """Turn what was sampled into sequences to learn from; also the share of right letters.

    A letter is right if it follows the one before it, and its advantage is over the letters at
    its place in the other answers to the prompt.
    """
    texts = np.array([[*a.tokens, *b.tokens] for a, b in zip(requests, completions, strict=True)])
    right = (texts[:, 1:] == (texts[:, :-1] + 1) % LETTERS).astype(np.float32)
    groups = right.reshape(LETTERS, GROUP_SIZE, ANSWER)
    advantages = (groups - groups.mean(1, keepdims=True)).reshape(right.shape)
    prompt = [0.0]
    items = [
        PackItem(
            tokens=text.astype(np.int32),
            loss_mask=np.arange(1 + ANSWER) > 0,
            rollout_logprobs=np.array([*prompt, *completion.logprobs], np.float32),
            advantages=np.array([*prompt, *advantage], np.float32),
        )
        for text, completion, advantage in zip(texts, completions, advantages, strict=True)
    ]
    return items, float(right.mean())


async def sample_all(
    sampler: NativeSampler, requests: Sequence[SampleRequest]
) -> list[Completion]:
    completions: dict[int, Completion] = {}

    async def sample(number: int) -> None:
        completions[number] = await sampler.sample(requests[number])

    async with trio.open_nursery() as nursery:
        for number in range(len(requests)):
            nursery.start_soon(sample, number)
    return [completions[number] for number in range(len(requests))]


async def train(updates: int) -> None:
    model = own_model()
    # A loss weighted by advantages: REINFORCE.
    rule = UpdateRule(model.forward, sft_loss, optax.adam(0.01), BATCH_SHAPE)
    sampler = NativeSampler(SIZES, model)
    run = sampler.device.run  # all JAX calls are made on one thread
    async with trio.open_nursery() as nursery:
        await nursery.start(sampler.serve)
        params = await run(partial(jax.jit(model.init), jax.random.key(0)))
        learner = await run(partial(Learner, params, rule, sampler.device))
        to_sampler = partial(model.sampler_params, weights=SIZES.weights)
        convert = await run(partial(compile_convert, to_sampler, params))
        for version in range(updates):
            await publish(
                lambda: learner.params, sampler, version, convert=convert, device=sampler.device
            )
            requests = make_requests(version)
            completions = await sample_all(sampler, requests)
            items, share = make_items(requests, completions)
            microbatches, rows, row_tokens = BATCH_SHAPE
            batch = pack(items, microbatches=microbatches, rows=rows, row_tokens=row_tokens)
            metrics = await learner.update(batch)
            if version % 5 == 0 or version == updates - 1:
                print(f"update {version:3d}  right {share:.2f}  entropy {metrics['entropy']:.2f}")
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(train, 30)
