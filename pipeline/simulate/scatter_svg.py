"""A scatter picture as SVG. Pure functions of the points.

Plain shapes on white. One colour a level, blue to red of ColorBrewer's RdBu, which people with
colour blindness can tell apart; what is not on the frontier is hollow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from .scatter import SYMBOLS, Axes, Point, tick_label, ticks

_WIDTH, _HEIGHT = 720, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 68, 56
_COLOURS = ("#2166ac", "#67a9cf", "#ef8a62", "#b2182b")
_INK, _PALE = "#222222", "#dddddd"


def draw_svg(points: Sequence[Point], axes: Axes) -> str:
    """Draw the points, at least one, as an SVG picture; hovering over one shows its text.

    The chosen one has a ring, and its text stands above the picture.
    """
    x_ticks, y_ticks = (
        ticks(max(p.x for p in points), most=6),
        ticks(max(p.y for p in points), most=6),
    )
    frame = _Frame(x_ticks[-1], y_ticks[-1])
    order = sorted(points, key=_layer)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12" '
            f'fill="{_INK}">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
            _svg_text(_LEFT, 24, axes.title, size=15),
            *_svg_axes(frame, axes, x_ticks, y_ticks),
            *(_svg_point(frame, point) for point in order),
            *(_svg_text(_LEFT, 44, point.text) for point in order if point.kind == "chosen"),
            *_svg_legend(axes.levels),
            "</svg>\n",
        ]
    )


def _layer(point: Point) -> int:
    return list(SYMBOLS).index(point.kind)


@dataclass(frozen=True)
class _Frame:
    """Places values in the picture."""

    x_max: float
    y_max: float

    def x(self, value: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * value / self.x_max, 1)

    def y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / self.y_max, 1)


def _svg_axes(
    frame: _Frame, axes: Axes, x_ticks: Sequence[float], y_ticks: Sequence[float]
) -> list[str]:
    left, right, top, bottom = frame.x(0), frame.x(frame.x_max), frame.y(frame.y_max), frame.y(0)
    shapes = []
    for tick in y_ticks:
        y, label = frame.y(tick), tick_label(tick, percent=axes.y_percent)
        shapes.append(f'<path d="M{left} {y}H{right}" stroke="{_PALE}"/>')
        shapes.append(_svg_text(left - 8, y + 4, label, anchor="end"))
    for tick in x_ticks:
        x = frame.x(tick)
        shapes.append(f'<path d="M{x} {bottom}v5" stroke="{_INK}"/>')
        shapes.append(_svg_text(x, bottom + 19, tick_label(tick), anchor="middle"))
    shapes.append(f'<path d="M{left} {bottom}H{right}" stroke="{_INK}"/>')
    shapes.append(_svg_text((left + right) / 2, bottom + 42, axes.x_label, anchor="middle"))
    upright = f'transform="rotate(-90 18 {(top + bottom) / 2})"'
    middle = (top + bottom) / 2
    return [*shapes, _svg_text(18, middle, axes.y_label, anchor="middle", extra=upright)]


def _svg_point(frame: _Frame, point: Point) -> str:
    colour = _COLOURS[min(point.level, len(_COLOURS) - 1)]
    fill = "#ffffff" if point.kind == "rest" else colour
    x, y = frame.x(point.x), frame.y(point.y)
    ring = f'<circle cx="{x}" cy="{y}" r="9" fill="none" stroke="{_INK}" stroke-width="1.5"/>'
    return (
        f'<g><title>{escape(point.text)}</title><circle cx="{x}" cy="{y}" r="4.5" fill="{fill}" '
        f'stroke="{colour}" stroke-width="1.5"/>{ring if point.kind == "chosen" else ""}</g>'
    )


def _svg_legend(levels: Sequence[str]) -> list[str]:
    x, y = _WIDTH - _RIGHT + 24, _TOP + 8
    shapes = []
    for level, text in enumerate(levels):
        dot = f'<circle cx="{x}" cy="{y}" r="4.5" fill="{_COLOURS[level]}"/>'
        shapes += [dot, _svg_text(x + 12, y + 4, text)]
        y += 20
    y += 10
    for text, kind in (("on the frontier", "best"), ("beaten by another", "rest")):
        fill = "#ffffff" if kind == "rest" else _INK
        dot = f'<circle cx="{x}" cy="{y}" r="4.5" fill="{fill}" stroke="{_INK}"/>'
        shapes += [dot, _svg_text(x + 12, y + 4, text)]
        y += 20
    ring = f'<circle cx="{x}" cy="{y}" r="8" fill="none" stroke="{_INK}" stroke-width="1.5"/>'
    return [*shapes, ring, _svg_text(x + 12, y + 4, "recommended")]


def _svg_text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, extra: str = ""
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" {extra}>'
        f"{escape(text)}</text>"
    )
