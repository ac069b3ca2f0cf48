"""Builds the parts of a run from its recipe. Nothing runs here.

The only place that knows which implementation stands behind each stage.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import jax

from ..envs.base import EnvSpec, Task
from ..envs.builtin import build_env
from ..envs.messages import Message
from .algorithms.advantages import estimator
from .algorithms.losses import grpo_loss
from .config import Recipe
from .errors import ConfigError
from .groups.batching import BatchStatistics, form_batch
from .groups.packing import microbatches_needed
from .learner.logprobs import Forward
from .learner.optimizer import make_optimizer
from .learner.service import Learner, UpdateRule
from .models.decoder import forward
from .models.parameters import Params, init
from .offline.sft import demonstrations, render, sft_learner
from .prompts import TaskStream, load_tasks
from .rollout.episode import Rollout
from .sampler.service import NativeSampler
from .text.renderer import CharacterRenderer, Renderer
from .types import TrainBatch, TrajectoryGroup

CHECKED_CONVERSATIONS = 64


@dataclass(frozen=True)
class Parts:
    """The parts that exist from the start; learners follow when there are parameters.

    Attributes:
      tasks: the stream that training draws from.
      held_out: the tasks of the evaluations.
    """

    spec: EnvSpec
    renderer: Renderer
    tasks: TaskStream
    held_out: Sequence[Task]
    sampler: NativeSampler
    rollout: Rollout
    forward: Forward


def assemble(recipe: Recipe) -> Parts:
    """Build a run's parts.

    Raises:
      ConfigError: for an unknown environment, bad task files, or texts that the alphabet
        can't express.
    """
    spec = _environment(recipe)
    renderer = CharacterRenderer(recipe.text)
    _check_stop_ids(recipe, renderer)
    _check_alphabet(recipe, spec, renderer)
    sampler = NativeSampler(recipe.sampler, recipe.model, renderer.vocab_size)
    return Parts(
        spec=spec,
        renderer=renderer,
        tasks=TaskStream(
            _train_tasks(recipe, spec), seed=recipe.run.seed, shuffle=recipe.prompts.shuffle
        ),
        held_out=spec.tasks("eval", recipe.evaluate.tasks, recipe.run.seed),
        sampler=sampler,
        rollout=Rollout(spec.make, renderer, sampler.sample, recipe.rollout),
        forward=partial(forward, config=recipe.model),
    )


def initial_params(recipe: Recipe, parts: Parts) -> Params:
    """Draw random parameters from the run's seed."""
    return init(recipe.model, parts.renderer.vocab_size, jax.random.key(recipe.run.seed))


def make_sft_learner(recipe: Recipe, parts: Parts, params: Params) -> Learner:
    """Make the warm start's learner."""
    return sft_learner(
        params,
        parts.forward,
        parts.sampler.device,
        config=recipe.warm_start,
        batch_shape=_batch_shape(recipe, recipe.warm_start.batch_conversations),
    )


def make_learner(recipe: Recipe, parts: Parts, params: Params) -> Learner:
    """Make the learner of the reinforcement-learning phase."""
    algorithm, learner = recipe.algorithm, recipe.learner
    rule = UpdateRule(
        forward=parts.forward,
        loss=partial(grpo_loss, config=algorithm),
        optimizer=make_optimizer(learner, total_steps=recipe.run.steps * learner.epochs),
        batch_shape=_batch_shape(recipe, _batch_trajectories(recipe)),
        epochs=learner.epochs,
        temperature=recipe.rollout.temperature,
        old_logprobs=algorithm.old_logprobs,
        keep_reference=algorithm.kl_coefficient > 0,
    )
    return Learner(params, rule, parts.sampler.device)


def make_pack(
    recipe: Recipe,
) -> Callable[[Sequence[TrajectoryGroup], int], tuple[TrainBatch, BatchStatistics]]:
    """Make the function that turns groups and a batch number into a batch."""
    shape = _batch_shape(recipe, _batch_trajectories(recipe))
    algorithm = recipe.algorithm
    advantage = estimator(algorithm.advantage, normalize_std=algorithm.normalize == "group")

    def pack(groups: Sequence[TrajectoryGroup], batch: int) -> tuple[TrainBatch, BatchStatistics]:
        return form_batch(
            groups,
            advantage,
            batch=batch,
            group_size=recipe.rollout.group_size,
            shape=shape,
            normalize_batch=algorithm.normalize == "batch",
        )

    return pack


def conversations(recipe: Recipe, parts: Parts) -> Iterator[tuple[Message, ...]]:
    """Yield the warm start's scripted conversations.

    Raises:
      ConfigError: where the environment has no script.
    """
    if parts.spec.demonstrate is None:
        raise ConfigError(
            f"env.name {recipe.env.name!r} has no scripted conversations for a warm start of "
            f"{recipe.warm_start.steps} steps; set --warm-start.steps 0"
        )
    tasks = _train_tasks(recipe, parts.spec)
    return demonstrations(tasks, parts.spec.demonstrate, seed=recipe.run.seed)


def _environment(recipe: Recipe) -> EnvSpec:
    try:
        return build_env(recipe.env)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _check_stop_ids(recipe: Recipe, renderer: Renderer) -> None:
    needed = len(renderer.stop_ids)
    if needed > recipe.sampler.max_stop_ids:
        raise ConfigError(
            f"sampler.max_stop_ids must be >= {needed}, the ids that close a turn, got "
            f"{recipe.sampler.max_stop_ids}; set --sampler.max-stop-ids {needed}"
        )


def _check_alphabet(recipe: Recipe, spec: EnvSpec, renderer: Renderer) -> None:
    """Refuse an alphabet that can't express the environment's own conversations."""
    if spec.demonstrate is None:
        return
    tasks = spec.tasks("train", CHECKED_CONVERSATIONS, recipe.run.seed)
    for conversation in islice(
        demonstrations(tasks, spec.demonstrate, seed=recipe.run.seed), CHECKED_CONVERSATIONS
    ):
        render(conversation, renderer)


def _train_tasks(recipe: Recipe, spec: EnvSpec) -> Sequence[Task]:
    def make(count: int) -> Sequence[Task]:
        return spec.tasks("train", count, recipe.run.seed)

    return load_tasks(recipe.prompts, make)


def _batch_trajectories(recipe: Recipe) -> int:
    return recipe.schedule.batch_groups * recipe.rollout.group_size


def _batch_shape(recipe: Recipe, sequences: int) -> tuple[int, int, int]:
    """A, R, T that hold so many sequences of the longest kind."""
    rows, row_tokens = recipe.learner.microbatch_rows, recipe.learner.row_tokens
    needed = microbatches_needed(sequences, recipe.rollout.max_tokens, rows, row_tokens)
    return needed, rows, row_tokens
