"""A report for people: the numbers, the lags and the time account as bars."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..observe.graphs import number
from .report import Report, SimulatedSchedule

_BAR_CELLS = 40
_MOST_LAGS = 20  # rows of the histogram; beyond, neighbouring lags share a row
_EIGHTHS = " ▏▎▍▌▋▊▉"


def as_text(report: Report) -> RenderableType:
    """Return the whole report, to be printed by rich."""
    return Group(
        Text(f"{report.scenario}, simulated", style="bold"),
        _numbers(report),
        Text("\nlag in versions, groups", style="bold"),
        _bars({name: float(groups) for name, groups in _binned(report.lag.histogram).items()}),
        Text("\nwhere the device time went", style="bold"),
        _bars({name: share for name, share in report.account.items() if share}, percent=True),
        Text("\ndropped work, by tenth of the episodes, shortest first", style="bold"),
        Text("  " + "  ".join(f"{share:.0%}" for share in report.dropped_by_length_decile)),
        Text.assemble("\n", ("What limits it: ", "bold"), report.bottleneck + "."),
    )


def bar(share: float, cells: int) -> str:
    """Draw a share of a bar of so many cells, in eighths of a cell.

    Example:
      >>> bar(0.5, 4), bar(0.3, 4), bar(0.0, 4)
      ('██', '█▎', '')
    """
    eighths = round(min(max(share, 0.0), 1.0) * cells * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _numbers(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    ideal = report.ideal
    rows = {
        "schedule": _schedule(report.schedule),
        "efficiency": f"{report.efficiency:.3f} of what no schedule can exceed",
        "waste": f"{report.waste:.1%} of the generation time of used and dropped work was dropped",
        "lag": f"{report.lag.mean:.2f} on average, {report.lag.max} at most",
        "throughput": f"{number(report.groups_per_second)} groups/s",
        "time": f"{number(report.virtual_seconds)} virtual seconds; the least possible is "
        f"{number(ideal.seconds)} (sampler {number(ideal.sampler)}, environments "
        f"{number(ideal.environments)}, learner {number(ideal.learner)}, longest episode "
        f"{number(ideal.critical_path)})",
        "episodes": f"{report.episodes:,} of {report.turns:,} turns, at most "
        f"{report.in_flight_max:,} at once",
        "host": f"{number(report.host_microseconds_per_turn)} µs of processor time a turn",
    }
    if report.preemptions:
        rows["preemptions"] = f"{report.preemptions:,} times a full cache took a row away"
    for name, value in rows.items():
        table.add_row(Text(f"  {name}", style="dim"), value)
    return table


def _schedule(schedule: SimulatedSchedule) -> str:
    """Say the schedule in one line."""
    eta, most = schedule.max_mean_lag, schedule.max_lag
    each = "token that trains" if schedule.over_age == "mask" else "group"
    if schedule.deterministic:
        bounds = f"lag at most {eta} (lockstep)"
    else:
        bounds = f"lag at most {eta} on average, at most {most} for each {each}"
    every = schedule.publish_every
    publishes = f", a publish every {every} updates" if every > 1 else ""
    episodes = schedule.raised_for
    raised = f" (raised, so that {episodes:,} episodes can be in flight)" if episodes else ""
    return f"{schedule.batch_groups} groups a batch{publishes}; {bounds}{raised}"


def _bars(values: Mapping[str, float], *, percent: bool = False) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    table.add_column(justify="right")
    most = max(values.values(), default=0.0) or 1.0
    for name, value in values.items():
        text = f"{value:.1%}" if percent else f"{value:,.0f}"
        drawn = Text(bar(value / most, _BAR_CELLS), style="cyan")
        table.add_row(Text(f"  {name}", style="dim"), text, drawn)
    return table


def _binned(histogram: Mapping[int, int]) -> dict[str, int]:
    """Join neighbouring lags until they fit."""
    most = max(histogram, default=0)
    width = most // _MOST_LAGS + 1
    binned = dict.fromkeys(range(0, most + 1, width), 0)
    for lag, groups in histogram.items():
        binned[lag - lag % width] += groups
    return {
        str(low) if width == 1 else f"{low}-{low + width - 1}": groups
        for low, groups in binned.items()
    }
