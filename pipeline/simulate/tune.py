"""Tries settings in simulation and recommends one: `headrace tune`.

Where hardware is given, the splits of its chips are tried first, with the loosest schedule, and
the fastest one is kept. Then come all bounds on the lag and all loads that could differ. What
is not tuned stays as it is: the batch, the learner's speed, the environments.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from ..errors import ConfigError, HeadraceError, innermost
from ..groups.schedule import Schedule
from .config import Settings
from .costs import replica_unit
from .frontier import Outcome, Setting
from .hardware import HardwareConfig
from .run import simulate
from .scenarios import Simulation, Source, resolve
from .sweep import TuneConfig, next_round, schedules, splits
from .tune_report import Findings, as_svg
from .workers import run_all

OnProgress = Callable[[int, int], None]
"""`on_progress(done, planned)`: how many simulations ended, and how many there are at most."""


@dataclass(frozen=True, kw_only=True)
class TuneSettings(Settings):
    """All settings of a simulation, and of the tuning."""

    tune: TuneConfig = field(default_factory=TuneConfig)


def default_settings(source: Source) -> TuneSettings:
    """Return the settings that a tuning of a scenario or recipe starts from."""
    settings = source.settings
    return TuneSettings(**{item.name: getattr(settings, item.name) for item in fields(Settings)})


def tune(source: Source, settings: TuneSettings, *, on_progress: OnProgress) -> Findings:
    """Simulate the settings to try, and say what was found.

    Raises:
      ConfigError: where the settings contradict each other, or nothing fits the hardware.
      HeadraceError: if a simulation fails.
    """
    _check_folder(settings.tune.svg)
    base = resolve(source, settings)
    config = _applicable(settings.tune, base.schedule)
    settings = replace(settings, tune=config)
    plan = _Plan(source, settings, base, on_progress)
    plan.run()
    return Findings(
        recipe=base.name,
        outcomes=tuple(plan.outcomes.values()),
        rule=config.rule,
        steps=config.steps_for(base.steps),
        kept_flags=_kept_flags(base, settings),
    )


def write_svg(findings: Findings, path: str) -> None:
    """Write the picture of the frontier.

    Raises:
      ConfigError: if the file can't be written.
    """
    try:
        Path(path).write_text(as_svg(findings), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"tune.svg: can't write {path}: {error}; set --tune.svg") from error


class _Plan:
    """What is tried, in which order, and what came of it."""

    def __init__(
        self, source: Source, settings: TuneSettings, base: Simulation, on_progress: OnProgress
    ):
        self.outcomes: dict[Setting, Outcome] = {}
        self._source = source
        self._settings = settings
        self._base = base
        self._on_progress = on_progress
        self._done = 0

    def run(self) -> None:
        """Try the splits, then the schedules."""
        start = _setting(self._base, self._settings.sim.hardware)
        if start.sampler_chips:
            start = self._best_split(start)
        settings = self._schedules(start)
        while new := next_round(settings, self.outcomes):
            later = set(settings) - set(new) - set(self.outcomes)
            self._try(new, to_come=len(later))

    def _best_split(self, start: Setting) -> Setting:
        """Return the start with the fastest split."""
        config, unit = self._settings.tune, replica_unit(self._settings.sim.hardware)
        fitting = [setting for setting in splits(config, start, unit=unit) if self._fits(setting)]
        if not fitting:
            raise ConfigError(
                "tune.sampler_shares must leave room for the model on both sides, got "
                f"{config.sampler_shares}; raise --sim.hardware.learner-chips or set "
                "--tune.sampler-shares"
            )
        chips = {"sampler_chips": start.sampler_chips, "learner_chips": start.learner_chips}
        already = replace(fitting[0], **chips)
        self._try(fitting, to_come=len(set(self._schedules(start)) - {already}))
        best = max(self.outcomes.values(), key=_groups_per_second).setting
        return replace(start, sampler_chips=best.sampler_chips, learner_chips=best.learner_chips)

    def _schedules(self, start: Setting) -> list[Setting]:
        return schedules(
            self._settings.tune,
            start,
            group_size=self._base.rollout.group_size,
            batch_groups=self._base.schedule.batch_groups,
        )

    def _try(self, new: Sequence[Setting], *, to_come: int) -> None:
        """Simulate settings that are new; at most `to_come` others follow."""
        planned = self._done + len(new) + to_come
        self._on_progress(self._done, planned)

        def note() -> None:
            self._done += 1
            self._on_progress(self._done, planned)

        trials = [_Trial(setting, self._simulation(setting)) for setting in new]
        workers = self._settings.tune.processes
        outcomes = run_all(try_out, trials, workers=workers, on_done=note)
        self.outcomes |= zip(new, outcomes, strict=True)

    def _fits(self, setting: Setting) -> bool:
        try:
            self._simulation(setting)
        except ConfigError:
            return False
        return True

    def _simulation(self, setting: Setting) -> Simulation:
        """Return the base with one setting, and as long as a trial is."""
        base, config = self._base, self._settings.tune
        if setting.sampler_chips:
            base = resolve(self._source, _with_split(self._settings, setting))
        schedule = replace(
            base.schedule, max_mean_lag=setting.max_mean_lag, max_lag=setting.max_lag
        )
        return replace(
            base,
            schedule=schedule,
            rollout=replace(base.rollout, max_episodes=setting.episodes),
            steps=config.steps_for(base.steps),
        )


@dataclass(frozen=True)
class _Trial:
    """A setting, and the simulation that says what it is worth."""

    setting: Setting
    simulation: Simulation


def try_out(trial: _Trial) -> Outcome:
    """Simulate one setting.

    Raises:
      HeadraceError: if the simulation fails; it can be sent to another process.
    """
    try:
        report = simulate(trial.simulation)
    except BaseExceptionGroup as error:
        cause = innermost(error)
        raise HeadraceError(f"the simulation of {trial.setting} failed: {cause}") from error
    return Outcome(
        setting=trial.setting,
        groups_per_second=report.groups_per_second,
        efficiency=report.efficiency,
        waste=report.waste,
        lag_mean=report.lag.mean,
        lag_max=report.lag.max,
        bottleneck=report.bottleneck,
    )


def _applicable(config: TuneConfig, schedule: Schedule) -> TuneConfig:
    """Leave out what the rest of the schedule forbids or gives no meaning to."""
    least = schedule.publish_every - 1
    allowed = tuple(eta for eta in config.mean_lags if eta >= least)
    multiples = (1,) if schedule.deterministic else config.lag_multiples  # K has no effect there
    return replace(config, mean_lags=allowed or (least,), lag_multiples=multiples)


def _with_split(settings: TuneSettings, setting: Setting) -> TuneSettings:
    sim = settings.sim
    hardware = replace(
        sim.hardware, sampler_chips=setting.sampler_chips, learner_chips=setting.learner_chips
    )
    return replace(settings, sim=replace(sim, hardware=hardware))


def _setting(base: Simulation, hardware: HardwareConfig) -> Setting:
    has_chips = hardware.chip is not None
    return Setting(
        max_mean_lag=base.schedule.max_mean_lag,
        max_lag=base.schedule.max_lag,
        episodes=base.rollout.max_episodes,
        sampler_chips=hardware.sampler_chips if has_chips else 0,
        learner_chips=hardware.learner_chips if has_chips else 0,
    )


def _groups_per_second(outcome: Outcome) -> float:
    return outcome.groups_per_second


def _kept_flags(base: Simulation, settings: Settings) -> str:
    """Return the flags that keep what follows the number of episodes unless it is given."""
    if not base.sampler.turns_are_free:
        return ""
    rows = settings.sim.rows or base.rollout.max_episodes
    return f"--sim.rows {rows} --sim.batch-groups {base.schedule.batch_groups}"


def _check_folder(svg: str | None) -> None:
    if svg is not None and not Path(svg).parent.is_dir():
        raise ConfigError(
            f"tune.svg must be a file in an existing folder, got {svg}; create the folder"
        )
