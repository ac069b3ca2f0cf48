"""Builds the parts of a run from its recipe. Nothing runs here.

The only place that knows which implementation stands behind each stage.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from jax.sharding import Mesh

from ..envs.base import Split, Task
from ..envs.builtin import build_env
from ..envs.messages import Message
from ..envs.rewards.scorer import Scorer
from ..envs.spec import EnvSpec
from ..sharding.mesh import Topology
from .algorithms.advantages import batch_scaled, batch_whitened, estimator
from .algorithms.config import RewardsConfig
from .algorithms.losses import policy_loss
from .config import Recipe
from .device_thread import DeviceThread
from .errors import ConfigError, check
from .groups.batching import BatchStatistics, form_batch
from .groups.packing import microbatches_needed
from .learner.credit import assign_credit
from .learner.critic import CriticRule
from .learner.distillation import Teacher
from .learner.optimizer import make_optimizer
from .learner.precision import computed_in
from .learner.service import Learner, UpdateRule
from .models.adapted import adapted_model
from .models.model import Model, decoder_model
from .models.remat import Remat
from .offline.sft import demonstrations, render, sft_learner
from .policy import Policy, TextFiles
from .policy.renderer import make_renderer
from .policy.start import Start, load_start, starting_params
from .policy.teacher import load_teacher
from .processes import Processes
from .prompts import TaskStream, check_tasks, load_tasks
from .rollout.episode import Rollout
from .sampler.layout import make_layout
from .sampler.service import NativeSampler
from .text.renderer import Renderer
from .types import TrainBatch, TrajectoryGroup
from .weight_sync import Convert, compile_convert, compile_lora_convert

CHECKED_TASKS = 64


@dataclass(frozen=True)
class Parts:
    """The parts that exist from the start; learners follow when there are parameters.

    Attributes:
      train_tasks: what `tasks` draws from, and the warm start's scripts are about.
      held_out: the tasks of the evaluations.
      policy: what the run starts from; one without parameters has them drawn from the run's seed.
      decoder: the model without adapters.
      model: what learner and sampler compute, with adapters where they are trained.
      teacher: a frozen policy for the distillation; None without one.
      topology: the devices that learn, and those that sample.
      device: the learner's thread: the sampler's where they have the same devices, else one of its
        own, so that neither waits for the other.
      processes: those of the run.
    """

    spec: EnvSpec
    renderer: Renderer
    train_tasks: Sequence[Task]
    tasks: TaskStream
    held_out: Sequence[Task]
    sampler: NativeSampler
    rollout: Rollout
    policy: Policy
    decoder: Model
    model: Model
    teacher: Policy | None
    topology: Topology
    device: DeviceThread
    processes: Processes


def assemble(recipe: Recipe, processes: Processes | None = None) -> Parts:
    """Build a run's parts.

    Args:
      processes: those of the run, which have joined; None: this one is alone.

    Raises:
      ConfigError: for an unknown environment, tasks that it can't use, texts that the alphabet
        can't express, or a pretrained policy that can't be loaded or doesn't fit.
    """
    processes = Processes() if processes is None else processes
    topology = recipe.mesh.topology()
    policy = load_start(recipe.policy.path, recipe.model, recipe.text, topology)
    recipe.mesh.check_fits(policy.config, policy.vocab_size, recipe.learner.microbatch_rows)
    spec = _environment(recipe, for_chat=isinstance(policy.text, TextFiles))
    renderer = make_renderer(policy, spec.tools, recipe.policy.chat)
    _check_stop_ids(recipe, renderer)
    train_tasks = _train_tasks(recipe, spec)
    _check_scripts(recipe, spec, train_tasks, renderer)
    decoder = _decoder(recipe, policy, remat=recipe.policy.remat)
    model = adapted_model(decoder, recipe.lora) if recipe.lora.on else decoder
    mesh = _sampler_mesh(topology)
    make_layout(recipe.sampler, model, mesh)  # what doesn't fit is found before anything compiles
    sampler = NativeSampler(
        recipe.sampler,
        model,
        mesh=mesh,
        decode_text=renderer.text,
        close_deadline_seconds=recipe.controller.exit_deadline_seconds,
        calls=processes.calls,
    )
    return Parts(
        spec=spec,
        renderer=renderer,
        train_tasks=train_tasks,
        tasks=TaskStream(train_tasks, seed=recipe.run.seed, shuffle=recipe.prompts.shuffle),
        held_out=_own_tasks(recipe, spec, "eval", recipe.evaluate.tasks),
        sampler=sampler,
        rollout=Rollout(
            spec.make,
            renderer,
            sampler.sample,
            recipe.rollout,
            scorer=_scorer(recipe, spec),
            env_name=recipe.env.name,
        ),
        policy=policy,
        decoder=decoder,
        model=model,
        teacher=_teacher(recipe, policy, topology),
        topology=topology,
        device=_learner_thread(recipe, sampler, topology),
        processes=processes,
    )


def make_start(recipe: Recipe, parts: Parts) -> Start:
    """Give the parameters that the run starts from their places on the learner's mesh."""
    mesh, seed = parts.topology.learner_mesh, recipe.run.seed
    return starting_params(parts.policy, parts.decoder, recipe.lora, seed=seed, mesh=mesh)


def make_convert(recipe: Recipe, parts: Parts, start: Start) -> Convert:
    """Compile what turns trained parameters into the sampler's, and moves them there."""
    weights, places = recipe.sampler.weights, parts.sampler.places()
    if start.frozen is None:
        to_stored = partial(parts.model.sampler_params, weights=weights)
        return compile_convert(to_stored, start.trained, places=places)
    return compile_lora_convert(
        *start,
        lora=recipe.lora,
        model=parts.decoder,
        weights=weights,
        places=places,
    )


def make_sft_learner(recipe: Recipe, parts: Parts, start: Start) -> Learner:
    """Make the warm start's learner."""
    return sft_learner(
        start.trained,
        computed_in(parts.model.forward, recipe.learner.compute_type),
        parts.device,
        config=recipe.warm_start,
        batch_shape=_batch_shape(recipe, recipe.warm_start.batch_conversations),
        frozen=start.frozen,
    )


def make_learner(recipe: Recipe, parts: Parts, start: Start) -> Learner:
    """Make the learner of the reinforcement-learning phase."""
    learner = recipe.learner
    scale_tokens = recipe.algorithm.scale_tokens or recipe.rollout.max_tokens
    algorithm = replace(recipe.algorithm, scale_tokens=scale_tokens)
    base = computed_in(parts.decoder.forward, learner.compute_type)
    rule = UpdateRule(
        forward=computed_in(parts.model.forward, learner.compute_type),
        loss=partial(policy_loss, config=algorithm),
        optimizer=make_optimizer(learner, total_steps=recipe.run.steps * learner.epochs),
        batch_shape=_batch_shape(recipe, _batch_sequences(recipe)),
        epochs=learner.epochs,
        temperature=recipe.rollout.temperature,
        old_logprobs=algorithm.importance.old_logprobs,
        keep_reference=algorithm.kl.coefficient > 0,
        reference_decay=algorithm.kl.reference_decay,
        base_forward=base if algorithm.kl.reference == "base" else None,
        credit=partial(assign_credit, config=algorithm) if algorithm.credits_tokens else None,
        critic=_critic_rule(recipe) if algorithm.has_critic else None,
        replay=_replay(recipe, parts.model),
        distillation=recipe.distillation,
    )
    teacher = None if parts.teacher is None else _asked(recipe, parts.teacher)
    return Learner(
        start.trained,
        rule,
        parts.device,
        start.frozen,
        teacher=teacher,
        calls=parts.processes.calls,
    )


def _learner_thread(recipe: Recipe, sampler: NativeSampler, topology: Topology) -> DeviceThread:
    if topology.placement == "collocated":
        return sampler.device
    limit = recipe.controller.exit_deadline_seconds
    return DeviceThread("learner", close_deadline_seconds=limit)


def _sampler_mesh(topology: Topology) -> Mesh | None:
    """Give the sampler's mesh; None where it has the learner's only device."""
    alone = topology.placement == "collocated" and len(topology.sampler) == 1
    return None if alone else topology.sampler_mesh


def _decoder(recipe: Recipe, policy: Policy, *, remat: Remat = "none") -> Model:
    parts = recipe.mesh.tensor
    return decoder_model(policy.config, policy.vocab_size, remat=remat, vocab_parts=parts)


def _teacher(recipe: Recipe, policy: Policy, topology: Topology) -> Policy | None:
    path = recipe.distillation.teacher
    if path is None:
        return None
    teacher = load_teacher(path, policy.text, policy.vocab_size, topology=topology)
    recipe.mesh.check_fits(teacher.config, teacher.vocab_size, recipe.learner.microbatch_rows)
    return teacher


def _asked(recipe: Recipe, teacher: Policy) -> Teacher:
    model = _decoder(recipe, teacher)
    return Teacher(computed_in(model.forward, recipe.learner.compute_type), teacher.params)


def _replay(recipe: Recipe, model: Model) -> tuple[int, int] | None:
    """What the sampler records of a mixture of experts, the learner replays."""
    routed = None if model.cached is None else model.cached.routed
    if routed is None or not recipe.sampler.draws.record_experts:
        return None
    return routed.num_layers, routed.per_token


def _critic_rule(recipe: Recipe) -> CriticRule:
    learner, steps = recipe.learner, recipe.run.steps * recipe.learner.epochs
    critic = recipe.algorithm.rewards.critic
    settings = replace(learner, learning_rate=critic.learning_rate)
    return CriticRule(make_optimizer(settings, total_steps=steps), clip=critic.clip)


def make_pack(
    recipe: Recipe, parts: Parts
) -> Callable[[Sequence[TrajectoryGroup], int], tuple[TrainBatch, BatchStatistics]]:
    """Make the function that turns groups and a batch number into a batch."""
    shape = _batch_shape(recipe, _batch_sequences(recipe))
    algorithm, schedule = recipe.algorithm, recipe.schedule
    rewards = _with_weights(algorithm.rewards, parts.rollout.scorer)
    advantage = estimator(algorithm.advantage, normalize_std=algorithm.normalize == "group")
    over_batch = batch_scaled if algorithm.compares_members else batch_whitened
    on_host = algorithm.normalize == "batch" and not algorithm.credits_tokens
    normalize = over_batch if on_host else None

    def pack(groups: Sequence[TrajectoryGroup], batch: int) -> tuple[TrainBatch, BatchStatistics]:
        return form_batch(
            groups,
            advantage,
            batch=batch,
            group_size=recipe.rollout.group_size,
            shape=shape,
            normalize=normalize,
            rewards=rewards,
            max_lag=schedule.max_lag if schedule.over_age == "mask" else None,
        )

    return pack


def conversations(recipe: Recipe, parts: Parts) -> Iterator[tuple[Message, ...]]:
    """Yield the warm start's scripted conversations, for ever."""
    assert parts.spec.demonstrate is not None, "assemble checks this"
    return demonstrations(parts.train_tasks, parts.spec.demonstrate, seed=recipe.run.seed)


def _environment(recipe: Recipe, *, for_chat: bool) -> EnvSpec:
    try:
        return build_env(recipe.env, for_chat=for_chat)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _scorer(recipe: Recipe, spec: EnvSpec) -> Scorer | None:
    weights = recipe.algorithm.rewards.weight_of
    if not spec.rewards and not weights:
        return None
    try:
        return Scorer(spec.rewards, weights)
    except ValueError as error:
        raise ConfigError(f"{error}; set --algorithm.rewards.weights") from error


def _with_weights(rewards: RewardsConfig, scorer: Scorer | None) -> RewardsConfig:
    """Return the settings with the weight of every reward."""
    if scorer is None:
        return rewards
    weights = tuple([f"{name}={weight!r}" for name, weight in scorer.weights.items()])
    return replace(rewards, weights=weights)


def _check_stop_ids(recipe: Recipe, renderer: Renderer) -> None:
    needed = len(renderer.stop_ids)
    if needed > recipe.sampler.max_stop_ids:
        raise ConfigError(
            f"sampler.max_stop_ids must be >= {needed}, the ids that close a turn, got "
            f"{recipe.sampler.max_stop_ids}; set --sampler.max-stop-ids {needed}"
        )


def _check_scripts(
    recipe: Recipe, spec: EnvSpec, tasks: Sequence[Task], renderer: Renderer
) -> None:
    """Refuse what can't be imitated: no script, or tasks and texts that don't fit."""
    if spec.demonstrate is None:
        if recipe.warm_start.steps > 0:
            raise ConfigError(
                f"env.name {recipe.env.name!r} has no scripted conversations for a warm start of "
                f"{recipe.warm_start.steps} steps; set --warm-start.steps 0"
            )
        return
    for task in tasks[:CHECKED_TASKS]:
        try:
            tokens, _ = render(spec.demonstrate(task, random.Random(0)), renderer)
            _check_length(recipe, len(tokens))
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"env.name {recipe.env.name!r} can't use the task {task.id!r} "
                f"({type(error).__name__}: {error}); mend the tasks, see --prompts.path"
            ) from error


def _check_length(recipe: Recipe, script_tokens: int) -> None:
    row, needed = recipe.learner.row_tokens, recipe.warm_start.steps > 0
    what = f">= {script_tokens}, the tokens of a scripted conversation"
    hint = "raise --learner.row-tokens, or set --warm-start.steps 0"
    check(not needed or script_tokens <= row, "learner.row_tokens", row, what, hint=hint)


def _train_tasks(recipe: Recipe, spec: EnvSpec) -> Sequence[Task]:
    return load_tasks(recipe.prompts, partial(_own_tasks, recipe, spec, "train"))


def _own_tasks(recipe: Recipe, spec: EnvSpec, split: Split, count: int) -> Sequence[Task]:
    try:
        return check_tasks(spec.tasks(split, count, recipe.run.seed))
    except ValueError as error:
        flag = "--prompts.num-tasks" if split == "train" else "--evaluate.tasks"
        raise ConfigError(f"{error}; set {flag}") from error


def _batch_sequences(recipe: Recipe) -> int:
    """Count the sequences of the largest batch; a split trajectory may be one for each turn."""
    splits = recipe.policy.path is not None and recipe.policy.chat.history == "split"
    each = recipe.rollout.max_turns if splits else 1
    return recipe.schedule.batch_groups * recipe.rollout.group_size * each


def _batch_shape(recipe: Recipe, sequences: int) -> tuple[int, int, int]:
    """A, R, T that hold so many sequences of the longest kind."""
    rows, row_tokens = recipe.learner.microbatch_rows, recipe.learner.row_tokens
    needed = microbatches_needed(sequences, recipe.rollout.max_tokens, rows, row_tokens)
    return needed, rows, row_tokens
