"""Which settings a tuning tries. Pure functions of its configuration."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import check
from .frontier import Outcome, Rule, Setting

SHORTEST, LONGEST = 40, 100  # updates: beyond the start, and enough for a mean
MOST_WORKERS = 8


@dataclass(frozen=True)
class TuneConfig:
    """What a tuning tries, and how it chooses.

    Raises:
      ConfigError: for impossible numbers.
    """

    mean_lags: tuple[int, ...] = (0, 1, 2, 4, 6, 8)
    """Values of max_mean_lag (eta) to try; 0 is synchronous training."""
    lag_multiples: tuple[int, ...] = (2, 4)
    """Values of max_lag (K) to try, as multiples of eta."""
    loads: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Numbers of episodes in flight to try, as multiples of the scenario's."""
    sampler_shares: tuple[float, ...] = (0.5, 0.625, 0.75, 0.875)
    """Shares of the chips that sample to try; the best split is used for all that follows."""
    steps: int | None = None
    """Updates in each simulation; None: those of the run, but 40 to 100."""
    slack: float = 0.05
    """A setting may be slower than the fastest by this share to be recommended."""
    max_waste: float = 0.15
    """And may throw away this share of the sampling work."""
    workers: int | None = None
    """Processes that simulate; None: one for each CPU, up to 8. The results don't depend on it."""
    svg: str | None = None
    """Where to write a picture of the frontier; none by default."""

    def __post_init__(self) -> None:
        for name in ("mean_lags", "lag_multiples", "loads", "sampler_shares"):
            values = getattr(self, name)
            check(len(values) > 0, f"tune.{name}", values, "at least one number")
        self._check_numbers()
        for name in ("steps", "workers"):
            value = getattr(self, name)
            check(value is None or value >= 1, f"tune.{name}", value, ">= 1")
        for name in ("slack", "max_waste"):
            value = getattr(self, name)
            check(0 <= value <= 1, f"tune.{name}", value, ">= 0 and <= 1")

    @property
    def rule(self) -> Rule:
        """How a setting is chosen."""
        return Rule(self.slack, self.max_waste)

    @property
    def processes(self) -> int:
        """How many processes simulate."""
        return self.workers or min(os.cpu_count() or 1, MOST_WORKERS)

    def steps_for(self, run_steps: int) -> int:
        """Return how many updates each simulation makes, for a run of so many."""
        return self.steps or min(max(run_steps, SHORTEST), LONGEST)

    def _check_numbers(self) -> None:
        allowed = min(self.mean_lags) >= 0
        check(allowed, "tune.mean_lags", self.mean_lags, "all >= 0")
        allowed = min(self.lag_multiples) >= 1
        check(allowed, "tune.lag_multiples", self.lag_multiples, "all >= 1")
        check(min(self.loads) > 0, "tune.loads", self.loads, "all > 0")
        shares = self.sampler_shares
        allowed = min(shares) > 0 and max(shares) < 1
        check(allowed, "tune.sampler_shares", shares, "all > 0 and < 1")


def schedules(
    config: TuneConfig, base: Setting, *, group_size: int, batch_groups: int
) -> list[Setting]:
    """Return the settings to try with the base's split: all eta, K and loads.

    At most (eta + 1) batches are ever outstanding, so larger loads are cut down to that.

    Args:
      base: its episodes are the load 1.
      group_size: no setting has fewer episodes in flight.

    Example:
      >>> config = TuneConfig(mean_lags=(0, 2), lag_multiples=(1, 4), loads=(1.0, 2.0))
      >>> [(s.episodes, s.max_mean_lag, s.max_lag)
      ...     for s in schedules(config, Setting(64, 1, 4), group_size=1, batch_groups=32)]
      [(32, 0, 0), (64, 2, 2), (64, 2, 8), (96, 2, 2), (96, 2, 8)]
    """
    loads = [max(group_size, round(load * base.episodes)) for load in config.loads]
    batch = batch_groups * group_size
    return list(
        dict.fromkeys(
            replace(
                base,
                max_mean_lag=eta,
                max_lag=multiple * eta,
                episodes=min(load, (eta + 1) * batch),
            )
            for eta in config.mean_lags
            for load in loads
            for multiple in config.lag_multiples
        )
    )


def next_round(settings: Sequence[Setting], outcomes: Mapping[Setting, Outcome]) -> list[Setting]:
    """Return what to try next: for each eta and load the smallest K that is new and may differ.

    Where a K never had an effect (nothing was thrown away, and no lag reached it), a larger one
    would give the same run, event by event.

    Args:
      settings: all that may be tried.
      outcomes: of those tried already.
    """
    found: dict[tuple[int, int], Setting] = {}
    for setting in sorted(settings):
        family = setting.episodes, setting.max_mean_lag
        if family in found or setting in outcomes:
            continue
        if not any(_same_run(setting, outcome) for outcome in outcomes.values()):
            found[family] = setting
    return list(found.values())


def _same_run(setting: Setting, outcome: Outcome) -> bool:
    tried = outcome.setting
    only_larger = replace(tried, max_lag=setting.max_lag) == setting
    never_bound = outcome.waste == 0 and outcome.lag_max < tried.max_lag
    return only_larger and tried.max_lag < setting.max_lag and never_bound


def splits(config: TuneConfig, base: Setting, *, unit: int) -> list[Setting]:
    """Return the splits of the base's chips to try, with the loosest of the schedules.

    Where the schedule hardly binds, it is the split alone that decides the throughput.

    Args:
      unit: the sampler gets a multiple of so many chips, the learner at least one.

    Example:
      >>> config = TuneConfig(sampler_shares=(0.5, 0.7, 0.75))
      >>> [(s.sampler_chips, s.learner_chips) for s in splits(config, Setting(64, 1, 4, 8, 8),
      ...     unit=4)]
      [(8, 8), (12, 4)]
    """
    total = base.sampler_chips + base.learner_chips
    eta = max(config.mean_lags)
    loose = replace(base, max_mean_lag=eta, max_lag=max(config.lag_multiples) * eta)
    counts = (max(1, round(share * total / unit)) * unit for share in config.sampler_shares)
    return list(
        dict.fromkeys(
            replace(loose, sampler_chips=count, learner_chips=total - count)
            for count in counts
            if count < total
        )
    )
