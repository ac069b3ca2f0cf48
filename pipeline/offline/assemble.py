"""Builds the parts of a run without rollouts: what is read, how it is packed, what is learnt."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jax.sharding import Mesh

from ..algorithms.distillation import divergence
from ..errors import ConfigError
from ..learner.distillation import Teacher
from ..learner.optimizer import make_optimizer
from ..learner.precision import computed_in
from ..models.adapted import adapted_model
from ..models.frozen import freeze, frozen_axes
from ..models.model import Forward, Model, decoder_model
from ..models.parameters import Params, logical_axes
from ..models.remat import Remat
from ..policy import Policy, TextFiles
from ..policy.renderer import make_schema_renderer
from ..policy.start import compile_final, load_start, place, starting_params, without_params
from ..policy.teacher import load_teacher
from ..processes import Processes
from ..prompts import Cursor
from ..text.conversation import ToolSchema
from ..text.renderer import Renderer
from ..types import TrainBatch
from .batch import BatchShape, OfflineBatch, judged_batch, mismatched_rows, plain_batch
from .config import DistillRecipe, OfflineRecipe, PreferRecipe, check_given
from .examples import (
    Reader,
    Renderers,
    Taken,
    item_tokens,
    judged_tokens,
    read_conversation,
    read_judged,
    read_pair,
)
from .learner import OfflineLearner, OfflineRule
from .objectives import (
    Objective,
    distill_objective,
    preference_objective,
    sft_measurement,
    sft_objective,
    teacher_tokens,
)
from .sources import Source, open_source, split

CHECKED_ROWS = 64

Packed = tuple[OfflineBatch, TrainBatch | None]


@dataclass(frozen=True)
class OfflineParts:
    """The parts that exist from the start.

    Attributes:
      policy: what the run starts from, with its parameters where it is a pretrained one.
      mesh: where the learner's arrays lie.
      teacher: of a distillation, else None; its weights stored as the settings say.
      reader: turns rows into examples.
      pack: turns examples into a batch, and what a baseline is measured on.
      train: the rows to learn from.
      held_out: those to measure on, or None.
      steps: updates in all.
      processes: those of the run.
    """

    policy: Policy
    mesh: Mesh
    teacher: Policy | None
    reader: Reader[Any]
    pack: Callable[[Sequence[Any]], Packed]
    train: Source
    held_out: Source | None
    steps: int
    processes: Processes


def assemble_offline(recipe: OfflineRecipe, processes: Processes | None = None) -> OfflineParts:
    """Build a run's parts.

    Args:
      processes: those of the run, which have joined; None: this one is alone.

    Raises:
      ConfigError: for a policy, a teacher or a file that can't be used; the first rows are tried.
    """
    check_given(recipe)
    data = recipe.data
    train, held_out = split(open_source(data.path), data.eval_share, recipe.run.seed)
    if data.eval is not None:
        held_out = open_source(data.eval)
    topology = recipe.mesh.topology()
    policy = load_start(recipe.policy.path, recipe.model, recipe.text, topology)
    recipe.mesh.check_fits(policy.config, policy.vocab_size, recipe.learner.microbatch_rows)
    renderers = Renderers(partial(_renderer, policy, recipe))
    reader = _reader(recipe, renderers)
    for source in (train, held_out):
        _try(source, reader)
    return OfflineParts(
        policy=policy,
        mesh=topology.learner_mesh,
        teacher=_teacher(recipe, policy),
        reader=reader,
        pack=_packer(recipe),
        train=train,
        held_out=held_out,
        steps=_steps(recipe, len(train)),
        processes=Processes() if processes is None else processes,
    )


def make_learner(
    recipe: OfflineRecipe, parts: OfflineParts
) -> tuple[OfflineLearner, Callable[[Params], Policy]]:
    """Make the learner, and what makes of its parameters a policy that can be saved.

    Nothing of the parts is kept but what the learner holds.
    """
    policy, lora, mesh = parts.policy, recipe.lora, parts.mesh
    decoder = _decoder(policy, recipe, remat=recipe.policy.remat)
    model = adapted_model(decoder, lora) if lora.on else decoder
    start = starting_params(policy, decoder, lora, seed=recipe.run.seed, mesh=mesh)
    final = compile_final(without_params(policy), start, lora)
    teacher = None if parts.teacher is None else _stored(recipe, parts.teacher, mesh)
    rule = _rule(recipe, model.forward, teacher, parts)
    told = None if teacher is None else teacher.params
    return OfflineLearner(start.trained, rule, frozen=start.frozen, teacher=told), final


def row_stream(recipe: OfflineRecipe, parts: OfflineParts) -> Cursor:
    """Start the stream of the rows that are learnt from."""
    return Cursor(parts.train, seed=recipe.run.seed, shuffle=recipe.data.shuffle)


def step_rows(recipe: OfflineRecipe, parts: OfflineParts, step: int) -> int:
    """Say how many rows a step (from 0) takes: the last one of a number of epochs may be short."""
    size = recipe.data.batch_rows
    if recipe.run.steps > 0:
        return size
    return min(size, _epoch_rows(recipe, len(parts.train)) - step * size)


def held_out_examples(recipe: OfflineRecipe, parts: OfflineParts) -> Iterator[Taken[Any]]:
    """Yield what is measured on, a batch's rows at a time, in the file's order."""
    if parts.held_out is None:
        return
    count, size = min(len(parts.held_out), recipe.evaluate.rows), recipe.data.batch_rows
    for start in range(0, count, size):
        rows = [parts.held_out[index] for index in range(start, min(start + size, count))]
        yield parts.reader.take(rows)


def _rule(
    recipe: OfflineRecipe, forward: Forward, teacher: Teacher | None, parts: OfflineParts
) -> OfflineRule:
    forward = computed_in(forward, recipe.learner.compute_type)
    objective, measurement = _objectives(recipe, forward, teacher, parts.policy.vocab_size)
    empty, mismatched = parts.pack([])
    prefers = recipe.preference if isinstance(recipe, PreferRecipe) else None
    return OfflineRule(
        forward=forward,
        objective=objective,
        measurement=measurement if parts.held_out is not None else None,
        optimizer=make_optimizer(recipe.learner, total_steps=parts.steps),
        needs_reference=prefers is not None and prefers.needs_reference,
        empty=empty,
        mesh=parts.mesh,
        mismatched=mismatched,
    )


def _decoder(policy: Policy, recipe: OfflineRecipe, *, remat: Remat = "none") -> Model:
    parts = recipe.mesh.tensor
    return decoder_model(policy.config, policy.vocab_size, remat=remat, vocab_parts=parts)


def _stored(recipe: OfflineRecipe, teacher: Policy, mesh: Mesh) -> Teacher:
    """Make a teacher of a policy whose weights are stored as the settings say."""
    model = _decoder(teacher, recipe)
    axes = frozen_axes(teacher.params, logical_axes(teacher.config))
    return Teacher(model.forward, place(teacher.params, axes, mesh))


def _objectives(
    recipe: OfflineRecipe, forward: Forward, teacher: Teacher | None, vocab_size: int
) -> tuple[Objective, Objective]:
    if isinstance(recipe, PreferRecipe):
        prefer = partial(preference_objective, forward=forward, config=recipe.preference)
        return prefer, prefer
    if not isinstance(recipe, DistillRecipe):
        return partial(sft_objective, forward=forward), partial(sft_measurement, forward=forward)
    assert teacher is not None, "a distillation has a teacher"
    config = recipe.distill
    teach = partial(
        teacher_tokens,
        forward=computed_in(teacher.forward, recipe.learner.compute_type),
        k=min(config.top_k, vocab_size),
        entries=vocab_size,  # the teacher may have more rows
        temperature=config.temperature,
    )
    distill = partial(
        distill_objective,
        forward=forward,
        teach=teach,
        divergence=divergence(config.divergence, weight=config.weight),
        temperature=config.temperature,
    )
    return distill, distill


def _renderer(policy: Policy, recipe: OfflineRecipe, tools: Sequence[ToolSchema]) -> Renderer:
    """Make the renderer of the rows that have these tools."""
    if tools and not isinstance(policy.text, TextFiles):
        raise ConfigError("an alphabet has no words for tools; leave tools out of the rows")
    return make_schema_renderer(policy, tools, recipe.policy.chat)


def _teacher(recipe: OfflineRecipe, student: Policy) -> Policy | None:
    """Load a teacher, its weights stored as the settings say."""
    if not isinstance(recipe, DistillRecipe):
        return None
    config, rows = recipe.distill, recipe.learner.microbatch_rows
    setting = "distill.teacher"
    policy = load_teacher(
        config.teacher,
        student.text,
        student.vocab_size,
        setting=setting,
        topology=recipe.mesh.topology(),
    )
    recipe.mesh.check_fits(policy.config, policy.vocab_size, rows)
    return replace(policy, params=freeze(policy.params, config.teacher_weights))


def _reader(recipe: OfflineRecipe, renderers: Renderers) -> Reader[Any]:
    data = recipe.data
    limits = recipe.learner.row_tokens, data.too_long, data.unusable
    if not isinstance(recipe, PreferRecipe):
        return Reader(partial(read_conversation, renderers=renderers), item_tokens, *limits)
    read = read_judged if recipe.preference.loss == "kto" else read_pair
    return Reader(partial(read, renderers=renderers), judged_tokens, *limits)


def _packer(recipe: OfflineRecipe) -> Callable[[Sequence[Any]], Packed]:
    learner = recipe.learner
    shape = BatchShape(recipe.data.batch_rows, learner.microbatch_rows, learner.row_tokens)
    if not isinstance(recipe, PreferRecipe):
        return lambda items: (plain_batch(items, shape), None)
    has_baseline = recipe.preference.loss == "kto"

    def pack(units: Sequence[Any]) -> Packed:
        other = mismatched_rows(units, shape) if has_baseline else None
        return judged_batch(units, shape), other

    return pack


def _steps(recipe: OfflineRecipe, rows: int) -> int:
    return recipe.run.steps or -(-_epoch_rows(recipe, rows) // recipe.data.batch_rows)


def _epoch_rows(recipe: OfflineRecipe, rows: int) -> int:
    return max(1, round(recipe.data.epochs * rows))


def _try(source: Source | None, reader: Reader[Any]) -> None:
    """Read a file's first rows, so that what is wrong with all of them is found at once."""
    if source is None:
        return
    rows = [source[index] for index in range(min(CHECKED_ROWS, len(source)))]
    if not reader.take(rows).examples:
        # Now with an error for a row that can't be read.
        tokens = [reader.longest(reader.read(row)) for row in rows]
        raise ConfigError(
            f"{rows[0].where} and the {len(rows) - 1} rows after it have {min(tokens)} tokens or "
            f"more, which don't fit into learner.row_tokens ({reader.row_tokens}); set "
            f"--learner.row-tokens {max(tokens)}"
        )
