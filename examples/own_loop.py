"""Use `train_step` in a loop of your own: three imports, no other part of Headrace.

The task: after each letter say the next one of the alphabet. A bigram model samples an answer
to each letter, the reward is 1 if it is right, and one jitted step learns from it.

Run: python examples/own_loop.py
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from headrace import TrainBatch
from headrace.pipeline.algorithms.losses import AlgorithmConfig, policy_loss
from headrace.pipeline.learner import init_state, train_step

Params = dict[str, jax.Array]

LETTERS, WIDTH, GROUP_SIZE = 8, 16, 32
ROWS = LETTERS * GROUP_SIZE


def forward(
    params: Params, tokens: jax.Array, positions: Any, segment_ids: Any
) -> tuple[jax.Array, jax.Array]:
    """Give hidden states [R, T, D] and the output head [V, D]: all that `train_step` needs."""
    return jnp.tanh(params["embedding"][tokens]), params["head"]


def init_params(key: jax.Array) -> Params:
    embedding, head = jax.random.split(key)
    return {
        "embedding": jax.random.normal(embedding, (LETTERS, WIDTH)),
        "head": 0.1 * jax.random.normal(head, (LETTERS, WIDTH)),
    }


@jax.jit
def sample(params: Params, questions: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Answer each question; return the answers and their logprobs, as any sampler does."""
    hidden, head = forward(params, questions, None, None)
    logprobs = jax.nn.log_softmax(hidden @ head.T)
    answers = jax.random.categorical(key, logprobs)
    return answers, jnp.take_along_axis(logprobs, answers[:, None], axis=-1)[:, 0]


def make_batch(
    questions: np.ndarray, answers: np.ndarray, logprobs: np.ndarray, advantages: np.ndarray
) -> TrainBatch:
    """One microbatch of rows of two tokens: the question, which is given, and the answer."""
    given = np.zeros_like(logprobs)
    sampled = np.tile([False, True], (ROWS, 1))
    return TrainBatch(
        tokens=np.stack([questions, answers], -1)[None].astype(np.int32),
        segment_ids=np.ones((1, ROWS, 2), np.int32),
        positions=np.tile(np.arange(2, dtype=np.int32), (1, ROWS, 1)),
        loss_mask=sampled[None],
        rollout_logprobs=np.stack([given, logprobs], -1)[None],
        log_kept_mass=np.zeros((1, ROWS, 2), np.float32),  # nothing was cut off the distribution
        lags=np.zeros((1, ROWS, 2), np.int32),  # sampled by the very policy that learns
        advantages=np.stack([given, advantages], -1)[None],
        microbatches=np.array(1, np.int32),
    )


def normalised(rewards: np.ndarray) -> np.ndarray:
    """GRPO's advantages: the answers to one question are one group."""
    groups = rewards.reshape(LETTERS, GROUP_SIZE)
    centred = groups - groups.mean(-1, keepdims=True)
    advantages: np.ndarray = centred / (groups.std(-1, keepdims=True) + 1e-4)
    return advantages.reshape(-1)


def main(steps: int = 60) -> list[float]:
    """Train; return the share of wrong answers before each step."""
    optimizer = optax.adam(0.03)
    loss = partial(policy_loss, config=AlgorithmConfig())
    bound = partial(train_step, forward=forward, loss=loss, optimizer=optimizer)
    step = jax.jit(bound, donate_argnums=0)
    state = init_state(init_params(jax.random.key(0)), optimizer)
    questions = np.repeat(np.arange(LETTERS), GROUP_SIZE)
    wrong = []
    for number in range(steps):
        key = jax.random.fold_in(jax.random.key(1), number)
        answers, logprobs = map(np.asarray, sample(state.params, questions, key))
        rewards = (answers == (questions + 1) % LETTERS).astype(np.float32)
        state, metrics = step(state, make_batch(questions, answers, logprobs, normalised(rewards)))
        wrong.append(1.0 - float(rewards.mean()))
        if number % 10 == 0 or number == steps - 1:
            print(f"step {number:3d}  wrong {wrong[-1]:.2f}  entropy {metrics['entropy']:.2f}")
    return wrong


if __name__ == "__main__":
    main()
