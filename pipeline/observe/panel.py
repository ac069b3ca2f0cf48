"""Lays out the live panel: a pure function from what is known of a run to lines of text.

Every line is exactly as wide as asked for, and there are never more lines than asked for,
whatever the size of the terminal: what matters least goes first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size

from .graphs import NOTHING, bar, duration, number, sparkline
from .sinks import Scalar

Span = tuple[str, str]  # text and rich style
Line = list[Span]

WIDEST = 100
_LABEL = 10
_TWO_COLUMNS_FROM = 68
_BORDER = "bright_black"
_NAME = "dim"
_VALUE = "bold"


@dataclass(frozen=True)
class Progress:
    """How far something is; `seconds_left` is None while nobody can tell."""

    label: str
    done: int
    total: int
    seconds_left: float | None = None


@dataclass(frozen=True)
class PanelContent:
    """What the panel shows.

    Attributes:
      record: the newest numbers.
      rewards: the whole run's, oldest first; so are `successes`.
    """

    recipe: str
    phase: str
    progress: Progress
    elapsed_seconds: float
    record: Mapping[str, Scalar] = field(default_factory=dict)
    rewards: Sequence[float] = ()
    successes: Sequence[float] = ()


def render_panel(content: PanelContent, *, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` cells, all equally wide."""
    width = min(width, WIDEST)
    if width < 12 or height < 3:
        progress = content.progress
        return [_fit([(f"{progress.done}/{progress.total}", _VALUE)], width)][: max(height, 0)]
    body = _body(content, width - 6, height - 2)
    lines = [_top(content, width)]
    for line in body:
        lines.append([("│", _BORDER), *_fit([("  ", ""), *line], width - 2), ("│", _BORDER)])
    return [*lines, _bottom(content, width)]


def _body(content: PanelContent, width: int, height: int) -> list[Line]:
    """Choose the lines that fit: (rank, line) in the order shown, low ranks stay longest."""
    rate_lines = _rate_lines(content.record, width)
    ranked: list[tuple[int, Line]] = [
        (9, []),
        (0, _progress_line(content.progress, width)),
        (7, []),
        (1, _curve_line("success", content, width)),
        (2, _curve_line("reward", content, width)),
        (8, []),
        *((3 + index, line) for index, line in enumerate(rate_lines)),
        (6, _counts_line(content.record)),
        (9, []),
    ]
    worst = sorted(rank for rank, _ in ranked)[: max(height, 0)]
    limit = worst[-1] if worst else -1
    chosen = [line for rank, line in ranked if rank <= limit]
    return chosen if len(chosen) <= height else [line for rank, line in ranked if rank < limit]


def _top(content: PanelContent, width: int) -> Line:
    title: Line = [(" headrace ", "bold cyan"), (f"{_printable(content.recipe)} ", "bold")]
    phase: Line = [(f" {_printable(content.phase)} ", "cyan")] if content.phase else []
    return _edge("╭", "╮", title, phase, width)


def _bottom(content: PanelContent, width: int) -> Line:
    return _edge("╰", "╯", [], [(f" {duration(content.elapsed_seconds)} ", _NAME)], width)


def _edge(start: str, end: str, left: Line, right: Line, width: int) -> Line:
    """Draw a border with text in it; the right text gives way first."""
    room = width - 4
    if _length(left) + _length(right) > room:
        right = []
    left = _cropped(left, room)
    rule = "─" * (room - _length(left) - _length(right))
    return [
        (f"{start}─", _BORDER), *left, (rule, _BORDER), *right, (f"─{end}", _BORDER),
    ]  # fmt: skip


def _progress_line(progress: Progress, width: int) -> Line:
    share = min(progress.done / progress.total, 1.0) if progress.total > 0 else 0.0
    count = f"{progress.done}/{progress.total}"
    left = "" if progress.seconds_left is None else f"  {duration(progress.seconds_left)} left"
    percent = f"{share:5.0%}".replace("%", " %")
    head = f"{_printable(progress.label):<{_LABEL}} {count:>7}  "
    size = width - cell_len(head) - len(percent) - len(left)
    done = round(share * max(size, 0))
    return [
        (f"{_printable(progress.label):<{_LABEL}} ", _NAME),
        (f"{count:>7}  ", _VALUE),
        ("━" * done, "green" if share >= 1 else "cyan"),
        ("─" * max(size - done, 0), _BORDER),
        (percent, ""),
        (left, _NAME),
    ]


def _curve_line(name: str, content: PanelContent, width: int) -> Line:
    is_share = name == "success"
    values = content.successes if is_share else content.rewards
    room = width - _LABEL - 10
    curve = sparkline(
        values, width=room, low=0.0 if is_share else None, high=1.0 if is_share else None
    )
    return [
        (f"{name:<{_LABEL}} ", _NAME),
        (f"{number(_number_of(content.record, name)):>7}  ", _VALUE),
        (curve, "green" if is_share else "yellow"),
    ]


def _rate_lines(record: Mapping[str, Scalar], width: int) -> list[Line]:
    """Lag, throughput and busy shares, in two columns where there is room."""
    lag = _lag_cell(record)
    tokens = _number_cell("tokens/s", _number_of(record, "tokens_per_second"))
    trajectories = _number_cell("episodes/h", _number_of(record, "trajectories_per_hour"))
    loss = _number_cell("entropy", _number_of(record, "entropy"))
    if width < _TWO_COLUMNS_FROM - 6:
        return [
            lag,
            [*_busy_cell("sampler", record, 8), ("  ", ""), *_busy_cell("learner", record, 8)],
            [*_fit(tokens, 22), *trajectories],
        ]
    half = width // 2
    return [
        [*_fit(lag, half), *_busy_cell("sampler", record, half - 20)],
        [*_fit(tokens, half), *_busy_cell("learner", record, half - 20)],
        [*_fit(trajectories, half), *loss],
    ]


def _lag_cell(record: Mapping[str, Scalar]) -> Line:
    largest, bound = _number_of(record, "lag_max"), _number_of(record, "lag_bound")
    is_broken = largest is not None and bound is not None and largest > bound
    return [
        (f"{'lag':<{_LABEL}} ", _NAME),
        (f"{number(_number_of(record, 'lag_mean')):>7}", _VALUE),
        ("  max ", _NAME),
        (_whole(largest), "bold red" if is_broken else _VALUE),
        (" of ", _NAME),
        (_whole(bound), _VALUE),
    ]


def _number_cell(name: str, value: float | None) -> Line:
    return [(f"{name:<{_LABEL}} ", _NAME), (f"{number(value):>7}", _VALUE)]


def _busy_cell(name: str, record: Mapping[str, Scalar], size: int) -> Line:
    share = _number_of(record, f"{name}_busy")
    percent = f"{NOTHING:>4}  " if share is None else f"{share:4.0%}".replace("%", " %")
    filled = bar(share or 0.0, width=size)
    return [(f"{name:<{_LABEL}} ", _NAME), (filled, "magenta on grey15"), (f" {percent}", "")]


def _counts_line(record: Mapping[str, Scalar]) -> Line:
    line: Line = []
    for name, label, style in (
        ("episodes_in_flight", "episodes in flight", ""),
        ("ready_groups", "groups ready", ""),
        ("dropped", "dropped", "yellow"),
        ("failures", "failures", "bold red"),
    ):
        value = _number_of(record, name)
        text = [(" · ", _BORDER)] if line else []
        shown = style if value else ""
        line += [*text, (_whole(value), shown or _VALUE), (f" {label}", shown or _NAME)]
    return line


def _number_of(record: Mapping[str, Scalar], name: str) -> float | None:
    value = record.get(name)
    return None if value is None or isinstance(value, str) else value


def _whole(value: float | None) -> str:
    """Counts may come as floats; show them without digits behind the point."""
    return number(round(value)) if value is not None and value == value else NOTHING


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _length(line: Line) -> int:
    return sum(cell_len(text) for text, _ in line)


def _cropped(line: Line, width: int) -> Line:
    kept: Line = []
    for text, style in line:
        size = min(cell_len(text), max(width, 0))
        kept.append((set_cell_size(text, size), style))
        width -= size
    return kept


def _fit(line: Line, width: int) -> Line:
    """Crop or pad to exactly `width` cells."""
    cropped = _cropped(line, width)
    return [*cropped, (" " * (width - _length(cropped)), "")]
