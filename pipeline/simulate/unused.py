"""Law 20 for simulations: a setting that would have no effect is an error, not silence.

Whether somebody set something is seen by comparing with the settings that a scenario starts
from; to set what is the default anyway is no mistake.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from ..errors import ConfigError
from .config import Settings
from .draws import Kind

_USED_OF_TAIL: dict[Kind, tuple[str, ...]] = {
    "constant": (),
    "exponential": ("cut",),
    "lognormal": ("sigma", "cut"),
    "pareto": ("alpha", "cut"),
}


@dataclass(frozen=True)
class Unused:
    """Settings, or whole sections of them, without effect.

    Attributes:
      why: after "has no effect".
      remedy: what to do.
      but: settings of these sections that have an effect all the same.
    """

    names: tuple[str, ...]
    why: str
    remedy: str
    but: tuple[str, ...] = ()

    def covers(self, name: str) -> bool:
        """Return whether the setting is one of these."""
        inside = any(f"{name}.".startswith(f"{section}.") for section in self.names)
        return inside and name not in self.but


def check_used(settings: Settings, defaults: Settings, rules: Iterable[Unused]) -> None:
    """Refuse settings that somebody set and that have no effect.

    Args:
      rules: further ones, beside those that hold in every scenario.

    Raises:
      ConfigError: with the setting, why it has no effect, and what to do.
    """
    changed = list(changed_settings(settings, defaults))
    for rule in (*rules, *_always(settings)):
        for name in filter(rule.covers, changed):
            raise ConfigError(f"{name} has no effect {rule.why}; {rule.remedy}")


def changed_settings(settings: Any, defaults: Any, section: str = "") -> Iterator[str]:
    """Yield the names of the settings that differ, with their sections.

    Example:
      >>> from .draws import Tail
      >>> list(changed_settings(Tail(cut=5.0), Tail(), "sim.tail."))
      ['sim.tail.cut']
    """
    for field in fields(defaults):
        value, default = getattr(settings, field.name), getattr(defaults, field.name)
        if is_dataclass(default):
            yield from changed_settings(value, default, f"{section}{field.name}.")
        elif value != default:
            yield f"{section}{field.name}"


def _always(settings: Settings) -> Iterator[Unused]:
    sim = settings.sim
    if sim.trace is not None:
        names = ("turns", "latency", "latency_mean_seconds", "tail", "tokens")
        yield Unused(
            tuple(f"sim.{name}" for name in names),
            "with sim.trace, which says all turns, lengths and latencies",
            "leave it out, or --sim.trace",
            but=("sim.tokens.coarsening",),
        )
    yield _distribution(settings)
    yield _costs(settings)
    if sim.batch_groups is not None:
        why, remedy = "once sim.batch_groups is set", "set only one of the two"
        yield Unused(("schedule.batch_groups",), why, remedy)
    if sim.episodes is not None:
        why, remedy = "once sim.episodes is set", "set only one of the two"
        yield Unused(("rollout.max_episodes",), why, remedy)


def _distribution(settings: Settings) -> Unused:
    kind = settings.sim.latency
    if kind == "recipe":
        return Unused(
            ("sim.latency_mean_seconds", "sim.tail"),
            "where the latency is the recipe's own, env.latency",
            "set --sim.latency too, for example --sim.latency lognormal",
        )
    return Unused(
        ("sim.tail",),
        f"on a latency that is {kind}",
        "set --sim.latency lognormal (with sigma) or pareto (with alpha)",
        but=tuple(f"sim.tail.{name}" for name in _USED_OF_TAIL[kind]),
    )


def _costs(settings: Settings) -> Unused:
    if settings.sim.hardware.chip is None:
        return Unused(
            ("sim.hardware",),
            "without a chip",
            "set --sim.hardware.chip, for example --sim.hardware.chip v5e",
            but=("sim.hardware.chip",),
        )
    return Unused(
        ("sim.speeds",),
        "with sim.hardware.chip, of which all costs are computed",
        "leave it out, or set --sim.hardware.chip None",
    )
