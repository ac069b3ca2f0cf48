"""What limits a run, in one sentence that names the setting to change.

A run that is close to its ideal is limited by what bounds the ideal, whatever slots are idle;
any other by its largest loss.
"""

from collections.abc import Mapping

from .account import CAPPED, MEMORY, WAITING, Ideal, Pools
from .scenarios import Simulation

_CLOSE = 0.9  # to the ideal: better schedules could gain little
_SMALL = 0.02  # losses below this are not worth a setting

# What bounds the ideal, and what would have to change.
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "sampler": ("the sampler: its turns need", "give it more of the devices"),
    "environments": ("the environments: with {episodes} episodes in flight they need", "{more}"),
    "learner": ("the learner: its updates need", "give it more of the devices"),
    "critical_path": (
        "the longest episode: it alone needs",
        "cut long episodes short, or make more updates (--run.steps)",
    ),
}

# Generation's losses: what happens, and what to do about it.
_LOSSES: Mapping[str, tuple[str, str]] = {
    CAPPED: (
        "the bound on the mean lag: {share} of the generation slots are idle as no more groups "
        "may be admitted",
        "raise --schedule.max-mean-lag (now {eta})",
    ),
    "dropped": (
        "dropped work: {share} of the generation time went into work that was not used",
        "raise --schedule.max-lag (now {most}), cut long episodes short, or mend what fails",
    ),
    WAITING: (
        "slow environments: {share} of the generation slots are idle though more groups may be "
        "admitted",
        "{more}",
    ),
    MEMORY: (
        "the cache: {share} of the rows are idle while requests wait for memory",
        "lower {episodes_flag}, or give the sampler more memory",
    ),
    "recompute": (
        "the cache: {share} of the generation time went into prefilling again what was evicted",
        "lower {episodes_flag}, or give the sampler more memory",
    ),
    "sync": (
        "publishes: they stop generation for {share} of the time",
        "raise --schedule.publish-every (now {every})",
    ),
    "evaluation": (
        "evaluations: they hold {share} of the rows",
        "raise --evaluate.every or lower --evaluate.tasks",
    ),
}


def describe_bottleneck(
    pools: Pools, ideal: Ideal, simulation: Simulation, *, seconds: float, in_flight_max: int
) -> str:
    """Say what limits a run and which setting to change.

    Args:
      seconds: virtual ones that the run took.
      in_flight_max: the most episodes at one time.
    """
    words = _words(simulation, in_flight_max)
    if ideal.seconds >= _CLOSE * seconds:
        return _bound_of_ideal(ideal, seconds, words)
    padding = pools.learner.get("padding", 0.0)
    busy = pools.learner.get("useful", 0.0) + padding
    if busy >= _CLOSE:
        return (
            f"the learner: it is busy {busy:.0%} of the time, {padding:.0%} with padding; give "
            "it more of the devices, or change --learner.row-tokens"
        )
    name = max(_LOSSES, key=lambda name: pools.generation.get(name, 0.0))
    share = pools.generation.get(name, 0.0)
    starved = pools.learner.get("starved", 0.0)
    if share < _SMALL or 2 * share < starved:
        return _generation_limits(pools, starved)
    what, remedy = _LOSSES[name]
    waits = f", and the learner waits {starved:.0%} of the time" if starved >= _SMALL else ""
    return f"{what.format(share=f'{share:.0%}')}{waits}; {remedy.format(**words)}"


def _bound_of_ideal(ideal: Ideal, seconds: float, words: Mapping[str, object]) -> str:
    name, bound = ideal.bound
    what, remedy = _BOUNDS[name]
    return (
        f"{what.format(**words)} {bound / seconds:.0%} of the time, so no other schedule could be "
        f"much faster; {remedy.format(**words)}"
    )


def _generation_limits(pools: Pools, starved: float) -> str:
    idle = sum(pools.generation.get(reason, 0.0) for reason in (CAPPED, WAITING, MEMORY))
    return (
        f"generation: its slots are busy {1 - idle:.0%} of the time, while the learner waits "
        f"{starved:.0%} of the time for groups; give generation more of the devices"
    )


def _words(simulation: Simulation, in_flight_max: int) -> dict[str, object]:
    """Return what the sentences above refer to."""
    schedule, rollout = simulation.schedule, simulation.rollout
    flag = "--sim.episodes" if simulation.sampler.turns_are_free else "--rollout.max-episodes"
    most = rollout.max_episodes
    is_automatic = simulation.controller.concurrency == "auto"
    if is_automatic and in_flight_max + rollout.group_size <= most:
        more = (
            f"more than {in_flight_max:,} episodes at once need --controller.concurrency fixed, "
            "or more rows of the sampler"
        )
    else:
        more = f"raise {flag} (now {most:,})"
    return {
        "episodes": f"{most:,}",
        "episodes_flag": flag,
        "more": more,
        "eta": schedule.max_mean_lag,
        "most": schedule.max_lag,
        "every": schedule.publish_every,
    }
