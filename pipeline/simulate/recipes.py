"""Recipes for training as simulations: the settings come from the recipe, the costs from `sim`.

Takes the recipe's parts and not the recipe, whose module imports JAX.
"""

from dataclasses import dataclass, replace

from ...envs.latency import LatencyConfig
from ..evaluate import EvaluateConfig
from ..groups.schedule import Schedule
from ..rollout.config import RolloutConfig
from ..stages import ControllerConfig
from .config import Settings, SimConfig, SimulatedRun, SpeedsConfig, TokensConfig
from .costs import learner_token_seconds, sampler_costs
from .scenarios import Packing, Simulation, Source, make_workload
from .speeds import LearnerCosts, SamplerCosts, SamplerSpeeds
from .unused import check_used
from .workload import CoarseScript

LONGEST_TOKENS = 1024  # of an episode, beyond which its lists are most of a simulation's work

# What a small model takes on a CPU; for anything else set sim.hardware or sim.speeds.
CPU = SpeedsConfig(
    sampler=SamplerSpeeds(
        dispatch_seconds=2e-3, row_seconds=2e-5, prefill_token_seconds=2e-5, publish_seconds=0.02
    ),
    learner=LearnerCosts(update_seconds=0.05, token_seconds=5e-5),
)


@dataclass(frozen=True, kw_only=True)
class RecipeParts:
    """What a simulation takes from a recipe."""

    name: str
    latency: LatencyConfig
    schedule: Schedule
    rollout: RolloutConfig
    controller: ControllerConfig
    evaluate: EvaluateConfig
    packing: Packing
    sampler_rows: int
    steps: int
    seed: int


def from_recipe(parts: RecipeParts) -> Source:
    """Return a recipe's settings as the start of a simulation's."""
    settings = Settings(
        sim=SimConfig(
            rows=parts.sampler_rows,
            turns=parts.rollout.max_turns,
            tokens=_tokens(parts.rollout),
            speeds=CPU,
        ),
        schedule=parts.schedule,
        rollout=parts.rollout,
        controller=parts.controller,
        evaluate=parts.evaluate,
        run=SimulatedRun(steps=parts.steps, seed=parts.seed),
    )
    return Source(
        parts.name, settings, resolve_costs, latency=parts.latency, packing=parts.packing
    )


def _tokens(rollout: RolloutConfig) -> TokensConfig:
    """Guess lengths with which an episode of all turns just fits; a recipe doesn't say them."""
    prompt = max(2, rollout.max_tokens // 4)
    a_turn = max(2, (rollout.max_tokens - prompt) // rollout.max_turns)
    turn = min(rollout.max_turn_tokens, max(1, a_turn * 2 // 3))
    return TokensConfig(prompt=prompt, turn=turn, observation=max(1, a_turn - turn))


def resolve_costs(source: Source, settings: Settings) -> Simulation:
    """Return what settings mean where turns cost time, by hardware or by given speeds.

    Raises:
      ConfigError: where the model doesn't fit on the chips, or settings contradict each other.
    """
    check_used(settings, source.settings, ())
    sim = settings.sim
    hardware = sim.hardware
    schedule, rollout = settings.schedule, settings.rollout
    if sim.batch_groups is not None:
        schedule = replace(schedule, batch_groups=sim.batch_groups)
    if sim.episodes is not None:
        rollout = replace(rollout, max_episodes=sim.episodes)
    sampler, learner = _costs(settings)
    chips = hardware.sampler_chips + hardware.learner_chips
    simulation = Simulation(
        name=source.name,
        schedule=schedule,
        rollout=rollout,
        controller=settings.controller,
        workload=make_workload(source, settings, sim.turns or rollout.max_turns),
        sampler=sampler,
        learner=learner,
        sampler_share=hardware.sampler_chips / chips if hardware.chip else 0.5,
        packing=source.packing,
        evaluate=settings.evaluate,
        steps=settings.run.steps,
        seed=settings.run.seed,
    )
    return coarsen(simulation, sim.tokens.coarsening or fitting_coarsening(rollout))


def _costs(settings: Settings) -> tuple[SamplerCosts, LearnerCosts]:
    sim = settings.sim
    if sim.hardware.chip is None:
        return sim.speeds.sampler.with_rows(sim.rows), sim.speeds.learner
    learner = LearnerCosts(token_seconds=learner_token_seconds(sim.hardware))
    return sampler_costs(sim.hardware, rows=sim.rows), learner


def fitting_coarsening(rollout: RolloutConfig) -> int:
    """Return the smallest coarsening with which episodes stay below `LONGEST_TOKENS`.

    Example:
      >>> fitting_coarsening(RolloutConfig(max_tokens=32_768)), fitting_coarsening(RolloutConfig())
      (32, 1)
    """
    return -(-rollout.max_tokens // LONGEST_TOKENS)


def coarsen(simulation: Simulation, coarsening: int) -> Simulation:
    """Return the simulation in which one token stands for `coarsening` of them.

    Times don't change, but for the rounding of lengths. A decode step of one such token takes as
    long as the steps of those that it stands for.
    """
    if coarsening == 1:
        return simulation
    rollout, packing = simulation.rollout, simulation.packing
    workload = simulation.workload
    return replace(
        simulation,
        rollout=replace(
            rollout,
            max_tokens=max(2, _ceil(rollout.max_tokens, coarsening)),
            max_turn_tokens=_ceil(rollout.max_turn_tokens, coarsening),
        ),
        workload=replace(workload, script=CoarseScript(workload.script, coarsening)),
        sampler=simulation.sampler.coarsened(coarsening),
        learner=LearnerCosts(
            simulation.learner.update_seconds, simulation.learner.token_seconds * coarsening
        ),
        packing=packing and replace(packing, row_tokens=_ceil(packing.row_tokens, coarsening)),
    )


def _ceil(tokens: int, coarsening: int) -> int:
    return -(-tokens // coarsening)
