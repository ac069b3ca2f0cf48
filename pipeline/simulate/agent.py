"""The built-in scenario `agent`, a tool user with long contexts on accelerators; all by name.

Chosen so that a change of any setting shows: with the default 16 + 16 chips sampling and learning
could do about the same, an episode lives for about four updates, and the cache is nearly full.
"""

from collections.abc import Callable, Mapping

from ..groups.schedule import Schedule
from ..rollout.config import RolloutConfig
from ..stages import ControllerConfig
from .config import Settings, SimConfig, SimulatedRun, TokensConfig
from .draws import Tail
from .hardware import HardwareConfig
from .recipes import resolve_costs
from .scenarios import LONG_SECONDS, Source, balanced

MEAN_TOOL_SECONDS = 5.0
LONGEST_TOOL_SECONDS = 60.0


def agent() -> Source:
    """Return the scenario.

    Groups of 16 episodes; each has 10 turns of 600 tokens on average (the length of a turn is
    lognormal), between them tools that answer 1,500 tokens after 5 seconds on average and 60 at
    most (Pareto, alpha = 1.5): 23,000 tokens an episode. An 8B model on v5p.
    """
    return Source(
        "agent",
        Settings(
            sim=_sim(),
            schedule=Schedule(batch_groups=8, max_mean_lag=4, max_lag=16),
            rollout=_rollout(),
            controller=ControllerConfig(
                concurrency="fixed",
                batch_deadline_seconds=LONG_SECONDS,
                update_deadline_seconds=LONG_SECONDS,
                publish_deadline_seconds=LONG_SECONDS,
            ),
            run=SimulatedRun(steps=60),
        ),
        resolve_costs,
    )


def _sim() -> SimConfig:
    return SimConfig(
        rows=512,
        latency="pareto",
        latency_mean_seconds=MEAN_TOOL_SECONDS,
        tail=Tail(alpha=1.5, cut=LONGEST_TOOL_SECONDS / MEAN_TOOL_SECONDS),
        turns=10,
        tokens=TokensConfig(prompt=2000, turn=600, turn_sigma=0.8, observation=1500),
        hardware=HardwareConfig(chip="v5p", sampler_chips=16, learner_chips=16),
    )


def _rollout() -> RolloutConfig:
    return RolloutConfig(
        group_size=16,
        max_turns=10,
        max_turn_tokens=8192,
        max_tokens=32_768,
        max_episodes=576,
        env_deadline_seconds=LONG_SECONDS,
        sample_deadline_seconds=LONG_SECONDS,
    )


SCENARIOS: Mapping[str, Callable[[], Source]] = {"balanced": balanced, "agent": agent}
"""The built-in scenarios by name."""
