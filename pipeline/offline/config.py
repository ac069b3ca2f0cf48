"""The settings of training without rollouts: what all three commands share, and their own."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..algorithms.distillation import DivergenceName
from ..errors import ConfigError, check
from ..learner.optimizer import LearnerConfig
from ..learner.placement import MeshConfig
from ..models.config import ModelConfig
from ..models.frozen import StoredBase
from ..models.lora import LoraConfig
from ..policy.config import PolicyConfig
from ..run_config import CheckpointConfig, CommonRunConfig
from ..text.renderer import TextConfig

PreferenceName = Literal["dpo", "ipo", "orpo", "kto"]


@dataclass(frozen=True)
class DataConfig:
    """Which rows are learnt from, and which are held out."""

    path: str = ""
    """A .jsonl, .parquet or .array_record file."""
    eval: str | None = None
    """Such a file of rows to measure on; None: take eval_share of the data."""
    eval_share: float = 0.0
    """Share of the rows of path that are held out, in [0, 1)."""
    epochs: float = 1.0
    """Passes over the rows, where run.steps is 0."""
    batch_rows: int = 32
    """Rows of the data in one update."""
    shuffle: bool = True
    """A new order each epoch; otherwise that of the file."""
    too_long: Literal["skip", "error"] = "skip"
    """What to do about a row of more than learner.row_tokens tokens; skipped ones are counted."""
    unusable: Literal["error", "skip"] = "error"
    """What to do about a row that can't be used otherwise; skipped ones are counted, too."""

    def __post_init__(self) -> None:
        check(self.epochs > 0, "data.epochs", self.epochs, "> 0 and finite")
        check(self.batch_rows >= 1, "data.batch_rows", self.batch_rows, ">= 1")
        check(0 <= self.eval_share < 1, "data.eval_share", self.eval_share, "in [0, 1)")
        both = self.eval is not None and self.eval_share > 0
        check(not both, "data.eval_share", self.eval_share, "0 beside data.eval")
        check(self.eval != "", "data.eval", "", "the path of a file")


@dataclass(frozen=True)
class OfflineEvaluateConfig:
    """When the held-out rows are measured; at the start and the end they always are."""

    every: int = 0
    """Updates between two measurements; 0: none in between."""
    rows: int = 1024
    """At most so many rows, the first ones."""
    deadline_seconds: float = 3600.0
    """Deadline of one measurement."""

    def __post_init__(self) -> None:
        check(self.every >= 0, "evaluate.every", self.every, ">= 0")
        check(self.rows >= 1, "evaluate.rows", self.rows, ">= 1")
        deadline = self.deadline_seconds
        check(deadline > 0, "evaluate.deadline_seconds", deadline, "> 0 and finite")


_DEADLINES = ("prepare", "batch", "update", "save", "exit")


@dataclass(frozen=True)
class OfflineWaitsConfig:
    """How long each wait may take; measurements have a deadline of their own."""

    prepare_deadline_seconds: float = 7200.0
    """Deadline of making the learner and compiling all programs."""
    batch_deadline_seconds: float = 3600.0
    """The learner waits at most so long for the rows of an update."""
    update_deadline_seconds: float = 1800.0
    """Deadline of one update of the learner."""
    save_deadline_seconds: float = 1800.0
    """Deadline of saving a checkpoint, and of saving the policy."""
    exit_deadline_seconds: float = 60.0
    """What doesn't end so long after the run was ended is ended by force; see the docs."""
    stall_seconds: float = 0.0
    """A run in which no wait begins or ends for so long is ended. 0: a minute longer than the
    longest of the deadlines of rows, updates, measurements and saving."""

    def __post_init__(self) -> None:
        for name in _DEADLINES:
            value = getattr(self, f"{name}_deadline_seconds")
            check(value > 0, f"waits.{name}_deadline_seconds", value, "> 0 and finite")
        check(self.stall_seconds >= 0, "waits.stall_seconds", self.stall_seconds, ">= 0")


@dataclass(frozen=True)
class PreferenceConfig:
    """How answers are preferred; see `algorithms.preferences` for the equations."""

    loss: PreferenceName = "dpo"
    """dpo, ipo and orpo take pairs; kto takes single answers with a label, or pairs."""
    beta: float = 0.1
    """How near the policy stays to the reference; for ipo its tau, for orpo its lambda."""
    label_smoothing: float = 0.0
    """For dpo, the share of pairs that are taken to be labelled the wrong way, in [0, 0.5)."""
    length: Literal["default", "sum", "mean"] = "default"
    """What stands for an answer: the sum of its tokens' logprobs (dpo, kto) or their mean (ipo,
    orpo)."""
    desirable_weight: float = 1.0
    """For kto, of good answers."""
    undesirable_weight: float = 1.0
    """For kto, of bad answers."""

    def __post_init__(self) -> None:
        check(self.beta > 0, "preference.beta", self.beta, "> 0 and finite")
        smoothing = self.label_smoothing
        check(0 <= smoothing < 0.5, "preference.label_smoothing", smoothing, "in [0, 0.5)")
        idle = self.loss == "dpo" or smoothing == 0
        check(idle, "preference.label_smoothing", smoothing, f"0 for {self.loss}")
        for name in ("desirable_weight", "undesirable_weight"):
            value = getattr(self, name)
            check(value >= 0, f"preference.{name}", value, ">= 0 and finite")
            check(self.loss == "kto" or value == 1, f"preference.{name}", value, "1 but for kto")
        mean = self.loss != "orpo" or self.length != "sum"
        check(mean, "preference.length", self.length, "'mean' for orpo, whose odds need it")

    @property
    def by_mean(self) -> bool:
        """Whether answers count by their tokens' mean logprob."""
        return self.length == "mean" or (self.length == "default" and self.loss in ("ipo", "orpo"))

    @property
    def needs_reference(self) -> bool:
        """Whether the loss compares with the policy that the run starts from."""
        return self.loss != "orpo"


@dataclass(frozen=True)
class DistillConfig:
    """How a teacher is followed; see `algorithms.distillation` for the equations."""

    teacher: str = ""
    """A policy as for policy.path, with the same tokens."""
    divergence: DivergenceName = "forward"
    """forward covers all that the teacher would say, reverse seeks what it would say most."""
    top_k: int = 64
    """The teacher's likeliest tokens that are compared one by one; all others count as one."""
    temperature: float = 1.0
    """Both distributions are softened by it; > 0."""
    weight: float = 0.5
    """For jensen_shannon, of the teacher in the mixture, in (0, 1)."""
    teacher_weights: StoredBase = "float32"
    """How the teacher's weights are stored."""

    def __post_init__(self) -> None:
        check(self.top_k >= 1, "distill.top_k", self.top_k, ">= 1")
        check(self.temperature > 0, "distill.temperature", self.temperature, "> 0 and finite")
        check(0 < self.weight < 1, "distill.weight", self.weight, "in (0, 1)")
        idle = self.divergence == "jensen_shannon" or self.weight == 0.5
        check(idle, "distill.weight", self.weight, "0.5 but for jensen_shannon")


@dataclass(frozen=True, kw_only=True)
class OfflineRecipe:
    """All settings that the three commands share; see each part for its fields.

    Raises:
      ConfigError: where parts contradict each other.
    """

    run: CommonRunConfig = field(default_factory=CommonRunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    text: TextConfig = field(default_factory=TextConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    evaluate: OfflineEvaluateConfig = field(default_factory=OfflineEvaluateConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    waits: OfflineWaitsConfig = field(default_factory=OfflineWaitsConfig)

    def __post_init__(self) -> None:
        epochs = self.learner.epochs
        hint = "set --data.epochs to pass over the data more often"
        check(epochs == 1, "learner.epochs", epochs, "1 without rollouts", hint=hint)
        history = self.policy.chat.history
        check(history == "keep", "policy.chat.history", history, "'keep' without rollouts")
        published = self.lora.publish
        check(published == "merged", "lora.publish", published, "'merged' without a sampler")

    @property
    def stall_after_seconds(self) -> float:
        """After how long without any progress the run is ended."""
        waits = self.waits
        deadlines = (
            waits.batch_deadline_seconds,
            waits.update_deadline_seconds,
            waits.save_deadline_seconds,
            self.evaluate.deadline_seconds,
        )
        return waits.stall_seconds or max(deadlines) + 60.0


@dataclass(frozen=True, kw_only=True)
class SftRecipe(OfflineRecipe):
    """Supervised fine-tuning."""


@dataclass(frozen=True, kw_only=True)
class PreferRecipe(OfflineRecipe):
    """Learning from preferences."""

    preference: PreferenceConfig = field(default_factory=PreferenceConfig)

    def __post_init__(self) -> None:
        OfflineRecipe.__post_init__(self)
        rows = self.learner.microbatch_rows
        why = "so that the answers of a pair fit in one microbatch"
        check(rows >= 2, "learner.microbatch_rows", rows, f">= 2, {why}")
        batch = self.data.batch_rows
        why = "since kto compares with answers to other prompts"
        check(
            self.preference.loss != "kto" or batch >= 2, "data.batch_rows", batch, f">= 2, {why}"
        )


@dataclass(frozen=True, kw_only=True)
class DistillRecipe(OfflineRecipe):
    """Distillation of a teacher's distributions on given conversations."""

    distill: DistillConfig = field(default_factory=DistillConfig)


RECIPES: dict[str, Any] = {"sft": SftRecipe, "prefer": PreferRecipe, "distill": DistillRecipe}


def command_of(recipe: OfflineRecipe) -> str:
    """Name the command that a recipe belongs to."""
    return next(name for name, kind in RECIPES.items() if type(recipe) is kind)


def default_recipe(command: str, *, pretrained: bool) -> Any:
    """Give a command's recipe without anything set: sizes for a small model, or a pretrained one.

    Args:
      command: a key of `RECIPES`.
    """
    learning_rate = {"sft": 2e-5, "prefer": 1e-6, "distill": 2e-5}[command]
    if not pretrained:
        learner = LearnerConfig(learning_rate=1e-3, beta2=0.95, microbatch_rows=4, row_tokens=256)
        return RECIPES[command](run=CommonRunConfig(name=command), learner=learner)
    learner = LearnerConfig(learning_rate=learning_rate, microbatch_rows=2, row_tokens=2048)
    recipe = RECIPES[command](run=CommonRunConfig(name=command), learner=learner)
    return replace(recipe, policy=PolicyConfig(remat="matrices"))


def check_given(recipe: OfflineRecipe) -> None:
    """Refuse a recipe without data or, for distillation, without a teacher."""
    check(recipe.data.path != "", "data.path", "", "the path of a file of rows")
    if isinstance(recipe, DistillRecipe) and recipe.distill.teacher == "":
        raise ConfigError("distill needs a teacher; set --teacher to a policy, as for --policy")
