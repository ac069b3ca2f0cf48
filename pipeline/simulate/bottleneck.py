"""What limits a run, in one sentence that names the setting to change."""

from collections.abc import Mapping

from ..groups.schedule import Schedule
from .account import CAPPED, MEMORY, WAITING, Pools

_ENOUGH = 0.95  # a pool that is so busy has nothing to give
_SMALL = 0.02  # losses below this are not worth a setting

# Generation's losses: what happens, and what to do about it.
_LOSSES: Mapping[str, tuple[str, str]] = {
    CAPPED: (
        "the bound on the mean lag: {share} of the generation slots are idle as no more groups "
        "may be admitted",
        "raise --schedule.max-mean-lag (now {eta})",
    ),
    "dropped": (
        "dropped work: {share} of the generation time went into groups that were not used",
        "raise --schedule.max-lag (now {most}), or cut long episodes short",
    ),
    WAITING: (
        "slow environments: {share} of the generation slots are idle though more groups may be "
        "admitted",
        "raise --rollout.max-episodes",
    ),
    MEMORY: (
        "the cache: {share} of the rows are idle while requests wait for memory",
        "lower --rollout.max-episodes, or give the sampler more memory",
    ),
    "recompute": (
        "the cache: {share} of the generation time went into prefilling again what was evicted",
        "lower --rollout.max-episodes, or give the sampler more memory",
    ),
    "sync": (
        "publishes: they stop generation for {share} of the time",
        "raise --schedule.publish-every (now {every})",
    ),
}


def describe_bottleneck(pools: Pools, schedule: Schedule) -> str:
    """Say what limits a run and which setting to change."""
    learner = pools.learner.get("useful", 0.0) + pools.learner.get("padding", 0.0)
    if learner >= _ENOUGH:
        return _learner_limits(pools, learner)
    name = max(_LOSSES, key=lambda name: pools.generation.get(name, 0.0))
    share = pools.generation.get(name, 0.0)
    starved = pools.learner.get("starved", 0.0)
    if share < _SMALL or 2 * share < starved:
        return _generation_limits(pools, starved)
    what, remedy = _LOSSES[name]
    numbers = {
        "share": f"{share:.0%}",
        "eta": schedule.max_mean_lag,
        "most": schedule.max_lag,
        "every": schedule.publish_every,
    }
    waits = f", and the learner waits {starved:.0%} of the time" if starved >= _SMALL else ""
    return f"{what.format(**numbers)}{waits}; {remedy.format(**numbers)}"


def _generation_limits(pools: Pools, starved: float) -> str:
    idle = sum(pools.generation.get(reason, 0.0) for reason in (CAPPED, WAITING, MEMORY))
    return (
        f"generation: its slots are busy {1 - idle:.0%} of the time, while the learner waits "
        f"{starved:.0%} of the time for groups; give generation more of the devices"
    )


def _learner_limits(pools: Pools, busy: float) -> str:
    idle = pools.generation.get(CAPPED, 0.0)
    if idle < _SMALL:
        return (
            f"nothing stands out: the learner is busy {busy:.0%} of the time and generation's "
            "slots are never idle for long; more devices for both make it faster"
        )
    return (
        f"the learner: it is busy {busy:.0%} of the time, while {idle:.0%} of the generation "
        "slots are idle; give the learner more of the devices"
    )
