"""A recipe: the settings of all stages, composed and checked against each other once.

Each stage's config lives beside the stage; `recipes` reads them from TOML files.
"""

from dataclasses import dataclass, field
from typing import Literal

from ..envs.builtin import EnvConfig
from .algorithms.config import AlgorithmConfig
from .errors import check
from .evaluate import EvaluateConfig
from .groups.ledger import Schedule
from .learner.distillation import DistillationConfig
from .learner.optimizer import LearnerConfig
from .learner.placement import RolloutMeshConfig
from .models.config import ModelConfig
from .models.lora import LoraConfig
from .offline.sft import SftConfig
from .policy.config import PolicyConfig
from .prompts import PromptsConfig
from .rollout.config import RolloutConfig
from .run_config import CheckpointConfig, CommonRunConfig
from .sampler.config import SamplerConfig
from .stages import ControllerConfig
from .text.renderer import TextConfig


@dataclass(frozen=True)
class RunConfig(CommonRunConfig):
    """What is asked of a run with rollouts as a whole."""

    steps: int = 30
    """Updates of the learner."""
    predict: bool = True
    """Predict the run's efficiency at its start, by simulating some updates in a process."""
    view: Literal["auto", "live", "plain"] = "auto"
    """auto: live on a terminal, else one plain line a step."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings of a training run; see each stage's config for its fields.

    Raises:
      ConfigError: where stages contradict each other.
    """

    run: RunConfig = field(default_factory=RunConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    prompts: PromptsConfig = field(default_factory=PromptsConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    text: TextConfig = field(default_factory=TextConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    schedule: Schedule = field(default_factory=Schedule)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    mesh: RolloutMeshConfig = field(default_factory=RolloutMeshConfig)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    warm_start: SftConfig = field(default_factory=SftConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        _check_group_size(self)
        _check_tokens(self)
        _check_temperature(self)
        _check_reference(self)


def _check_group_size(recipe: Recipe) -> None:
    size = recipe.rollout.group_size
    why = "since an advantage compares the members of a group"
    hint = "set --rollout.group-size, or --algorithm.advantage none"
    allowed = size >= 2 or not recipe.algorithm.compares_members
    check(allowed, "rollout.group_size", size, f">= 2, {why}", hint=hint)


def _check_tokens(recipe: Recipe) -> None:
    needed = recipe.rollout.max_tokens
    rooms = {
        "sampler.context_tokens": recipe.sampler.context_tokens,
        "learner.row_tokens": recipe.learner.row_tokens,
    }
    for name, room in rooms.items():
        hint = f"raise --{name.replace('_', '-')} or lower --rollout.max-tokens"
        check(room >= needed, name, room, f">= rollout.max_tokens ({needed})", hint=hint)


def _check_temperature(recipe: Recipe) -> None:
    temperature = recipe.rollout.temperature
    why = "since the members of a group would all be the same"
    check(temperature > 0, "rollout.temperature", temperature, f"> 0 for training, {why}")


def _check_reference(recipe: Recipe) -> None:
    reference = recipe.algorithm.kl.reference
    allowed = reference == "start" or recipe.lora.on
    hint = "set --lora.rank, or --algorithm.kl.reference start"
    check(allowed, "algorithm.kl.reference", reference, "'start' without adapters", hint=hint)
