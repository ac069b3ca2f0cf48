"""From settings to a simulation: what each setting means in a scenario or a recipe.

`balanced` is the built-in scenario. A group is one job of mean duration 1 that only waits for
its environment; the policy's turns take no time and no job queues for a row. `sim.rows` jobs run
at once, and an update takes batch_groups / rows seconds: generation and training could both do
`rows` groups a second, and what is missing is the schedule's price. With `sim.episodes` so many
jobs run at once instead, and the schedule's bounds are raised where they would not admit them.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...envs.latency import LatencyConfig
from ..errors import ConfigError, check
from ..evaluate import EvaluateConfig
from ..groups.schedule import Schedule
from ..rollout.config import RolloutConfig
from ..stages import ControllerConfig
from .config import Settings, SimConfig
from .draws import Distribution, Tail
from .speeds import LearnerCosts, SamplerCosts
from .trace import Replay, read_trace
from .unused import Unused, check_used
from .workload import DrawnScript, Script, Workload

LONG_SECONDS = 1e6  # no deadline of the built-in scenario ever matters


@dataclass(frozen=True)
class Packing:
    """The learner's packed rows: R rows of T tokens a microbatch."""

    microbatch_rows: int
    row_tokens: int


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """All that `run.simulate` needs; nothing in it is optional or looked up later.

    Attributes:
      sampler_share: the sampler's share of the devices, 0..1; the learner has the rest.
      packing: None where batches are not padded.
      evaluate: evaluations during training; those before and after it are not simulated.
      raised_for: so many episodes are to be in flight, for which the schedule's bounds were
        raised; None where they are as they were set.
    """

    name: str
    schedule: Schedule
    rollout: RolloutConfig
    controller: ControllerConfig
    workload: Workload
    sampler: SamplerCosts
    learner: LearnerCosts
    sampler_share: float = 0.5
    packing: Packing | None = None
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    steps: int = 300
    seed: int = 0
    raised_for: int | None = None


@dataclass(frozen=True)
class Source:
    """Where settings start from, and what they can't say.

    Attributes:
      settings: the defaults.
      latency: the recipe's `env.latency`; None in the built-in scenarios.
      packing: the recipe's.
      bounds_are_given: whether the settings' bounds on the lag were asked for, default or not.
    """

    name: str
    settings: Settings
    resolve: Callable[["Source", Settings], Simulation]
    latency: LatencyConfig | None = None
    packing: Packing | None = None
    bounds_are_given: bool = False


def balanced() -> Source:
    """Return the built-in scenario of equal capacities."""
    settings = Settings(
        sim=SimConfig(latency="lognormal"),
        schedule=Schedule(batch_groups=32, max_mean_lag=4, max_lag=16),
        rollout=RolloutConfig(
            group_size=1,
            min_group_size=1,
            max_turns=64,
            max_turn_tokens=1,
            max_tokens=256,
            max_episodes=128,
            env_deadline_seconds=LONG_SECONDS,
            sample_deadline_seconds=LONG_SECONDS,
        ),
        controller=ControllerConfig(
            concurrency="fixed",
            batch_deadline_seconds=LONG_SECONDS,
            update_deadline_seconds=LONG_SECONDS,
            publish_deadline_seconds=LONG_SECONDS,
        ),
    )
    return Source("balanced", settings, _resolve_balanced)


def resolve(source: Source, settings: Settings) -> Simulation:
    """Return what the settings mean.

    Raises:
      ConfigError: where they contradict each other, or have no effect.
    """
    return source.resolve(source, settings)


def _resolve_balanced(source: Source, settings: Settings) -> Simulation:
    sim = settings.sim
    check_used(settings, source.settings, _unused_in_balanced(sim))
    rows = sim.rows or sim.episodes or settings.rollout.max_episodes
    rollout = replace(settings.rollout, max_episodes=sim.episodes or rows)
    batch = sim.batch_groups or settings.schedule.batch_groups
    schedule = replace(settings.schedule, batch_groups=batch)
    admitted = (schedule.max_mean_lag + 1) * batch * rollout.group_size
    too_few = sim.episodes is not None and admitted < sim.episodes
    is_raised = too_few and not _bounds_are_given(source, schedule)
    return Simulation(
        name=source.name,
        schedule=_raised(schedule, rollout) if is_raised else schedule,
        rollout=rollout,
        controller=settings.controller,
        workload=make_workload(source, settings, sim.turns or 1),
        sampler=SamplerCosts(),
        learner=LearnerCosts(update_seconds=batch / rows),
        evaluate=settings.evaluate,
        steps=settings.run.steps,
        seed=settings.run.seed,
        raised_for=sim.episodes if is_raised else None,
    )


def _bounds_are_given(source: Source, schedule: Schedule) -> bool:
    """Whether the bounds are somebody's wish, which nothing may override."""
    default = source.settings.schedule
    bounds = schedule.max_mean_lag, schedule.max_lag
    return source.bounds_are_given or bounds != (default.max_mean_lag, default.max_lag)


def _raised(schedule: Schedule, rollout: RolloutConfig) -> Schedule:
    """Raise the bounds until all episodes can be in flight, also while a batch is trained."""
    eta = math.ceil(rollout.max_episodes / (schedule.batch_groups * rollout.group_size))
    return replace(schedule, max_mean_lag=eta, max_lag=max(schedule.max_lag, 4 * eta))


def _unused_in_balanced(sim: SimConfig) -> Iterator[Unused]:
    yield Unused(
        ("sim.trace", "sim.tokens", "sim.speeds", "sim.hardware"),
        "in balanced, where turns take no time",
        "simulate the scenario agent or a recipe instead: headrace simulate agent",
    )
    if sim.rows is not None:
        why, remedy = "in balanced once sim.rows is set", "set --sim.episodes instead"
        yield Unused(("rollout.max_episodes",), why, remedy)


def make_workload(source: Source, settings: Settings, turns: int) -> Workload:
    """Return what episodes do: drawn, or replayed from a trace."""
    most = settings.rollout.max_turns
    check(turns <= most, "sim.turns", turns, f"<= rollout.max_turns ({most})")
    return Workload(
        _script(source, settings, turns), failure_probability=settings.sim.failure_probability
    )


def _script(source: Source, settings: Settings, turns: int) -> Script:
    sim, tokens = settings.sim, settings.sim.tokens
    if sim.trace is not None:
        return Replay(read_trace(Path(sim.trace)), settings.run.seed)
    lengths = Distribution(
        "lognormal" if tokens.turn_sigma > 0 else "constant",
        float(tokens.turn),
        Tail(sigma=tokens.turn_sigma),
    )
    return DrawnScript(
        _latency(source, sim),
        turns=turns,
        prompt_tokens=tokens.prompt,
        turn_tokens=lengths,
        observed_tokens=tokens.observation,
    )


def _latency(source: Source, sim: SimConfig) -> Distribution | LatencyConfig:
    if sim.latency != "recipe":
        return Distribution(sim.latency, sim.latency_mean_seconds, sim.tail)
    if source.latency is None:
        raise ConfigError(
            f"sim.latency 'recipe' needs a recipe, and {source.name} is none; set --sim.latency "
            "lognormal"
        )
    return source.latency
