"""Supervised warm start: imitate scripted conversations before the first rollout.

Invariant: a conversation is rendered to exactly the ids that a rollout of it would produce, so
what is learnt here is what the sampler sees later. The loss is on the policy's own tokens, the
closing one included, and on nothing else.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...envs.base import Task
from ...envs.messages import Message
from ..algorithms.losses import sft_loss
from ..device_thread import DeviceThread
from ..errors import ConfigError, check
from ..groups.packing import PackItem, pack
from ..learner.logprobs import Forward
from ..learner.optimizer import LearnerConfig, make_optimizer
from ..learner.service import Learner, UpdateRule
from ..learner.state import Params
from ..text.renderer import Renderer
from ..types import Bools, Int32s
from .batch import sequence

_REWRITTEN = (
    "the chat template rewrites the turns of a conversation to imitate when more is said; leave "
    "reasoning out of demonstrations, or set --policy.chat.history keep"
)

Conversation = Sequence[Message]
OnStep = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class SftConfig:
    """The warm start: how long, on how much, how fast."""

    steps: int = 100
    """Optimizer steps; 0 leaves the warm start out."""
    batch_conversations: int = 256
    """Conversations of one step."""
    learning_rate: float = 1e-5
    """Of AdamW; RL starts with a fresh optimizer and its own rate."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from 0."""
    decay_share: float = 0.0
    """Share of the steps, the last ones, over which the learning rate falls to 0."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global norm."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    beta2: float = 0.95
    """Adam's decay of the gradient's square; a short warm start needs a short memory."""

    def __post_init__(self) -> None:
        for name, lowest in (("steps", 0), ("batch_conversations", 1), ("warmup_steps", 0)):
            value = getattr(self, name)
            check(value >= lowest, f"warm_start.{name}", value, f">= {lowest}")
        for name in ("learning_rate", "max_grad_norm"):
            value = getattr(self, name)
            check(value > 0, f"warm_start.{name}", value, "> 0 and finite")
        decay = self.weight_decay
        check(decay >= 0, "warm_start.weight_decay", decay, ">= 0 and finite")
        check(0 <= self.decay_share <= 1, "warm_start.decay_share", self.decay_share, "in [0, 1]")
        check(0 <= self.beta2 < 1, "warm_start.beta2", self.beta2, "in [0, 1)")


def render(
    conversation: Conversation, renderer: Renderer, learnt: Sequence[bool] | None = None
) -> tuple[Int32s, Bools]:
    """Render a conversation to the ids of its rollout: prompt, turn, delta, turn, …

    Messages after the policy's last turn are left out, as no rollout renders them.

    Args:
      conversation: starts with the environment's messages; each turn of the policy but the
        last is answered.
      learnt: for each message whether it is to be learnt, which only turns of the policy can be;
        None: all of these are.

    Returns:
      i32[T] tokens, and bool[T]: true on the policy's tokens that are to be learnt.

    Raises:
      ConfigError: the chat format rewrites what was said before, which a rollout would then read
        in a new sample.
      ValueError: the conversation has no turn of the policy, starts with one, or has two
        without an answer between them.
    """
    ids: list[int] = []
    mask: list[bool] = []
    heard: list[Message] = []
    learns = [True] * len(conversation) if learnt is None else learnt
    for place, (message, is_learnt) in enumerate(zip(conversation, learns, strict=True)):
        if message.role != "assistant":
            heard.append(message)
            continue
        if not heard:
            raise ValueError("a turn of the policy must follow a message of the environment")
        if ids and renderer.rewritten(ids, conversation[:place]) is not None:
            raise ConfigError(_REWRITTEN)
        context = renderer.delta(heard) if ids else renderer.prompt(heard)
        turn = renderer.turn(message)
        ids += context + turn
        mask += [False] * len(context) + [is_learnt] * len(turn)
        heard = []
    if not ids:
        raise ValueError("a conversation to imitate needs a message of role 'assistant'")
    return np.array(ids, np.int32), np.array(mask, np.bool_)


def pack_item(conversation: Conversation, renderer: Renderer) -> PackItem:
    """Render a conversation as one sequence of a batch, each token of the policy with weight 1."""
    return sequence(*render(conversation, renderer))


def demonstrations(
    tasks: Sequence[Task],
    demonstrate: Callable[[Task, random.Random], tuple[Message, ...]],
    *,
    seed: int,
) -> Iterator[tuple[Message, ...]]:
    """Yield scripted conversations for ever: each pass over the tasks in a new order."""
    rng = random.Random(seed)
    while True:
        for task in rng.sample(tasks, len(tasks)):
            yield demonstrate(task, rng)


def sft_learner(
    params: Params,
    forward: Forward,
    device: DeviceThread,
    *,
    config: SftConfig,
    batch_shape: tuple[int, int, int],
    frozen: Params | None = None,
) -> Learner:
    """Make the learner of the warm start; RL takes its `params` and nothing else of it.

    Args:
      frozen: as for `Learner`.
    """
    settings = LearnerConfig(
        learning_rate=config.learning_rate,
        warmup_steps=config.warmup_steps,
        decay_share=config.decay_share,
        max_grad_norm=config.max_grad_norm,
        weight_decay=config.weight_decay,
        beta2=config.beta2,
    )
    rule = UpdateRule(
        forward=forward,
        loss=sft_loss,
        optimizer=make_optimizer(settings, total_steps=config.steps),
        batch_shape=batch_shape,
        old_logprobs="rollout",
    )
    return Learner(params, rule, device, frozen)


async def warm_start(
    learner: Learner,
    conversations: Iterator[Conversation],
    renderer: Renderer,
    *,
    config: SftConfig,
    on_step: OnStep | None = None,
) -> dict[str, float]:
    """Take `config.steps` optimizer steps on fresh conversations.

    Args:
      learner: from `sft_learner`.
      conversations: yields at least `steps * batch_conversations`.
      on_step: told the number of the step (from 0) and its metrics.

    Returns:
      The last step's metrics; empty for 0 steps.

    Raises:
      ValueError: the conversations run out, or those of one step do not fit into a batch.
    """
    microbatches, rows, row_tokens = learner.batch_shape
    metrics: dict[str, float] = {}
    for step in range(config.steps):
        drawn = list(itertools.islice(conversations, config.batch_conversations))
        if len(drawn) < config.batch_conversations:
            raise ValueError(
                f"step {step} needs {config.batch_conversations} conversations, {len(drawn)} were "
                "left; lower --warm-start.steps or --warm-start.batch-conversations"
            )
        items = [pack_item(conversation, renderer) for conversation in drawn]
        batch = pack(items, microbatches=microbatches, rows=rows, row_tokens=row_tokens)
        metrics = await learner.update(batch)
        if on_step is not None:
            on_step(step, metrics)
    return metrics
