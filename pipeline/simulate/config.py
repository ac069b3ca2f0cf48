"""Settings of a simulation: `--sim.…`, beside the schedule, the rollout and the controller."""

from dataclasses import dataclass, field
from typing import Literal

from ..errors import check
from ..evaluate import EvaluateConfig
from ..groups.schedule import Schedule
from ..rollout.config import RolloutConfig
from ..stages import ControllerConfig
from .draws import Tail
from .hardware import HardwareConfig
from .speeds import LearnerCosts, SamplerSpeeds


@dataclass(frozen=True)
class TokensConfig:
    """How many tokens the simulated messages have; only the coarsening matters to a trace."""

    prompt: int = 2
    """Tokens of a task, >= 2."""
    turn: int = 1
    """Mean tokens of one turn of the policy, >= 1."""
    turn_sigma: float = 0.0
    """Spread of the turns (lognormal): the standard deviation of the logarithm, >= 0."""
    observation: int = 1
    """Tokens of one answer of the environment, >= 1."""
    coarsening: int | None = None
    """One simulated token stands for so many; none: as many as make episodes short to simulate."""

    def __post_init__(self) -> None:
        check(self.prompt >= 2, "sim.tokens.prompt", self.prompt, ">= 2")
        check(self.turn >= 1, "sim.tokens.turn", self.turn, ">= 1")
        check(self.turn_sigma >= 0, "sim.tokens.turn_sigma", self.turn_sigma, ">= 0 and finite")
        check(self.observation >= 1, "sim.tokens.observation", self.observation, ">= 1")
        coarsening = self.coarsening
        allowed = coarsening is None or coarsening >= 1
        check(allowed, "sim.tokens.coarsening", coarsening, ">= 1")


@dataclass(frozen=True)
class SpeedsConfig:
    """What the stages cost where no hardware is given."""

    sampler: SamplerSpeeds = field(default_factory=SamplerSpeeds)
    """Times and room of the sampler."""
    learner: LearnerCosts = field(default_factory=LearnerCosts)
    """Times of the learner."""


@dataclass(frozen=True)
class SimConfig:
    """What is simulated. A setting without a value is the scenario's or the recipe's."""

    rows: int | None = None
    """Rows of the sampler; in balanced generation and training do so many groups a second."""
    batch_groups: int | None = None
    """Groups per update, instead of schedule.batch_groups."""
    episodes: int | None = None
    """Episodes in flight, at most; in balanced by default the rows. If set there, the
    default bounds on the lag are raised where they admit fewer; bounds that are set stay."""
    latency: Literal["constant", "exponential", "lognormal", "pareto", "recipe"] = "recipe"
    """How long environments take: a distribution, or the recipe's own env.latency."""
    latency_mean_seconds: float = 1.0
    """Mean of that distribution, after the cut."""
    tail: Tail = field(default_factory=Tail)
    """Shape of that distribution."""
    turns: int | None = None
    """Turns of an episode."""
    failure_probability: float = 0.0
    """How often an episode's environment breaks at its end, 0..1."""
    trace: str | None = None
    """A run's trajectories.jsonl: replay its turns, lengths and latencies instead."""
    tokens: TokensConfig = field(default_factory=TokensConfig)
    """Lengths of what is said."""
    speeds: SpeedsConfig = field(default_factory=SpeedsConfig)
    """Costs of the stages."""
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    """Chips that the costs are computed for, instead of `speeds`."""

    def __post_init__(self) -> None:
        for name in ("rows", "batch_groups", "episodes", "turns"):
            value = getattr(self, name)
            check(value is None or value >= 1, f"sim.{name}", value, ">= 1")
        mean = self.latency_mean_seconds
        check(mean >= 0, "sim.latency_mean_seconds", mean, ">= 0 and finite")
        share = self.failure_probability
        check(0 <= share <= 1, "sim.failure_probability", share, "in 0..1")


@dataclass(frozen=True)
class SimulatedRun:
    """How long is simulated, and by which random numbers."""

    steps: int = 300
    """Updates of the learner, >= 1."""
    seed: int = 0
    """Decides all draws; equal seeds give equal results."""

    def __post_init__(self) -> None:
        check(self.steps >= 1, "run.steps", self.steps, ">= 1")
        check(0 <= self.seed < 2**63, "run.seed", self.seed, "in 0..2**63 - 1")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a simulation."""

    sim: SimConfig = field(default_factory=SimConfig)
    schedule: Schedule = field(default_factory=Schedule)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    run: SimulatedRun = field(default_factory=SimulatedRun)
