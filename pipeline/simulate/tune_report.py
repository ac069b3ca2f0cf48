"""What a tuning found: as a table, a picture, a recommendation in words, and as numbers.

Pure functions of the outcomes.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..observe.graphs import number
from .frontier import Outcome, Rule, Setting, frontier, recommend
from .scatter import SYMBOLS, Axes, Point, draw_text
from .scatter_svg import draw_svg

MIN_WIDTH, MAX_WIDTH, HEIGHT = 50, 100, 16  # of the picture in a terminal
_WASTES = (0.05, 0.15, 0.3)  # edges of the picture's colours


@dataclass(frozen=True)
class Findings:
    """All outcomes of a tuning, and what its rule chooses.

    Attributes:
      recipe: its name.
      outcomes: at least one.
      steps: updates in each simulation.
      kept_flags: what has to be given beside a setting, so that nothing else changes with it.
    """

    recipe: str
    outcomes: Sequence[Outcome]
    rule: Rule
    steps: int
    kept_flags: str = ""

    @property
    def chosen(self) -> Outcome:
        """The outcome that the rule recommends."""
        return recommend(self.outcomes, self.rule)

    @property
    def fastest(self) -> float:
        """The largest throughput, in groups per simulated second."""
        return max(outcome.groups_per_second for outcome in self.outcomes)


def as_text(findings: Findings, *, width: int) -> RenderableType:
    """Return table and picture for a terminal of that width, to be printed by rich."""
    picture = as_picture(findings, width=max(MIN_WIDTH, min(width, MAX_WIDTH)), height=HEIGHT)
    count = f"{len(findings.outcomes)} simulations of {findings.steps} updates"
    return Group(
        Text(f"{findings.recipe}, tuned in {count}\n", style="bold"),
        as_table(findings),
        Text("\n" + "\n".join(picture) + "\n"),
    )


def as_table(findings: Findings) -> Table:
    """Return all settings by mean lag; those on the frontier and the chosen one are marked.

    Chips are those of the sampler and of the learner.
    """
    with_chips = findings.chosen.setting.sampler_chips > 0
    table = Table(box=None, header_style="bold", padding=(0, 0, 0, 2), pad_edge=False)
    names = ["", "η", "K", "episodes", *(["chips"] if with_chips else [])]
    for name in (*names, "groups/s", "of best", "efficiency", "lag", "max", "waste"):
        table.add_column(name, justify="right", no_wrap=True)
    for outcome, kind in _marked(findings):
        style = {"rest": "dim", "best": "", "chosen": "bold green"}[kind]
        mark = SYMBOLS[kind] if kind != "rest" else ""
        table.add_row(mark, *_cells(outcome, findings.fastest, with_chips), style=style)
    return table


def as_picture(findings: Findings, *, width: int, height: int) -> list[str]:
    """Return the throughput against the mean lag as lines of text."""
    lines = draw_text(_points(findings), _axes(findings), width=width, height=height)
    return [*lines, "", f"{SYMBOLS['best']} on the frontier  {SYMBOLS['chosen']} recommended"]


def as_svg(findings: Findings) -> str:
    """Return the throughput against the mean lag as an SVG picture, coloured by waste."""
    return draw_svg(_points(findings), _axes(findings))


def as_words(findings: Findings) -> str:
    """Return the recommendation with the flags to copy, and why it is this one."""
    chosen, rule = findings.chosen, findings.rule
    lines = [
        f"Recommended: {rule}:",
        f"  {_all_flags(findings)}",
        f"In simulation: {chosen.groups_per_second / findings.fastest:.0%} of the best "
        f"throughput, efficiency {chosen.efficiency:.2f}, mean lag {chosen.lag_mean:.2f}, "
        f"waste {chosen.waste:.1%}.",
    ]
    if chosen.waste > rule.max_waste:
        lines[0] = f"No setting wastes at most {rule.max_waste:.0%}. This one wastes least:"
        lines.append("Try a larger max_lag: --tune.lag-multiples 8 16.")
    if chosen.bottleneck:
        lines.append(f"What bounds it: {chosen.bottleneck}.")
    return "\n".join(lines)


def as_record(findings: Findings) -> dict[str, Any]:
    """Return everything as what JSON can hold."""
    return {
        "recipe": findings.recipe,
        "steps": findings.steps,
        "simulations": len(findings.outcomes),
        "rule": str(findings.rule),
        "recommended": _record(findings.chosen, "chosen"),
        "flags": _all_flags(findings),
        "settings": [_record(outcome, kind) for outcome, kind in _marked(findings)],
    }


def flags(setting: Setting) -> str:
    """Return the flags that give a setting to `headrace simulate`.

    Example:
      >>> flags(Setting(128, 4, 16))
      '--schedule.max-mean-lag 4 --schedule.max-lag 16 --sim.episodes 128'
    """
    text = (
        f"--schedule.max-mean-lag {setting.max_mean_lag} --schedule.max-lag {setting.max_lag} "
        f"--sim.episodes {setting.episodes}"
    )
    if setting.sampler_chips > 0:
        text += (
            f" --sim.hardware.sampler-chips {setting.sampler_chips}"
            f" --sim.hardware.learner-chips {setting.learner_chips}"
        )
    return text


def _all_flags(findings: Findings) -> str:
    return f"{flags(findings.chosen.setting)} {findings.kept_flags}".strip()


def _marked(findings: Findings) -> list[tuple[Outcome, str]]:
    """Return each outcome with its kind, by mean lag."""
    best, chosen = frontier(findings.outcomes), findings.chosen

    def kind(outcome: Outcome) -> str:
        if outcome == chosen:
            return "chosen"
        return "best" if outcome in best else "rest"

    ordered = sorted(findings.outcomes, key=_by_lag)
    return [(outcome, kind(outcome)) for outcome in ordered]


def _by_lag(outcome: Outcome) -> tuple[float, float, Setting]:
    return (outcome.lag_mean, -outcome.groups_per_second, outcome.setting)


def _cells(outcome: Outcome, fastest: float, with_chips: bool) -> list[str]:
    setting = outcome.setting
    chips = [f"{setting.sampler_chips}+{setting.learner_chips}"] if with_chips else []
    return [
        str(setting.max_mean_lag),
        str(setting.max_lag),
        str(setting.episodes),
        *chips,
        number(outcome.groups_per_second),
        f"{outcome.groups_per_second / fastest:.0%}",
        f"{outcome.efficiency:.2f}",
        f"{outcome.lag_mean:.2f}",
        str(outcome.lag_max),
        f"{outcome.waste:.1%}",
    ]


def _points(findings: Findings) -> list[Point]:
    return [
        Point(
            x=outcome.lag_mean,
            y=outcome.groups_per_second / findings.fastest,
            level=sum(outcome.waste > edge for edge in _WASTES),
            kind=kind,
            text=_describe(outcome, kind, findings.fastest),
        )
        for outcome, kind in _marked(findings)
    ]


def _describe(outcome: Outcome, kind: str, fastest: float) -> str:
    setting = outcome.setting
    begin = "Recommended: " if kind == "chosen" else ""
    chips = f", {setting.sampler_chips}+{setting.learner_chips} chips"
    return (
        f"{begin}η {setting.max_mean_lag}, K {setting.max_lag}, {setting.episodes} episodes"
        f"{chips if setting.sampler_chips else ''}: "
        f"{outcome.groups_per_second / fastest:.0%} of the best throughput, "
        f"mean lag {outcome.lag_mean:.2f}, waste {outcome.waste:.1%}"
    )


def _axes(findings: Findings) -> Axes:
    edges = [f"{edge:.0%}" for edge in _WASTES]
    return Axes(
        x_label="mean lag (versions)",
        y_label="throughput, of the best",
        levels=(*(f"waste up to {edge}" for edge in edges), f"waste over {edges[-1]}"),
        title=f"headrace tune {findings.recipe}",
        y_percent=True,
    )


def _record(outcome: Outcome, kind: str) -> dict[str, Any]:
    numbers = asdict(outcome)
    return {**numbers.pop("setting"), **numbers, "pareto": kind != "rest"}
