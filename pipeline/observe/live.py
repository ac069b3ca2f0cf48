"""The live panel on a terminal. It only shows what it is told, from the thread that tells it.

There is no background thread, and a terminal of any size, or one that changes, does no harm.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from .cells import Progress
from .graphs import History
from .panel import PanelContent, render_panel
from .sinks import Record

_SECONDS_BETWEEN_FRAMES = 0.1
_STEPS_FOR_ESTIMATE = 20
_NOTES_KEPT = 20


class LiveView:
    """A panel that stays at the bottom of the terminal until `close`.

    Open it through `open_view`, which restores the terminal whatever happens.
    """

    def __init__(
        self,
        recipe: str,
        total_steps: int,
        *,
        done: int = 0,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._recipe = recipe
        self._clock = clock
        self._began_seconds = clock()
        self._drawn_seconds = float("-inf")
        self._phase = ""
        self._phase_progress: Progress | None = None
        self._phase_began_seconds = self._began_seconds
        self._steps = Progress("step", done, total_steps)
        self._step_seconds: deque[float] = deque(maxlen=_STEPS_FOR_ESTIMATE)
        self._record: Record = {}
        self._rewards, self._successes = History(), History()
        console = Console(file=stream)
        self._size = console.size
        self._notes: deque[str] = deque(maxlen=_NOTES_KEPT)
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._frame)
        self._live.start(refresh=True)

    def phase(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Show what the run is doing; with `done` and `total` the bar shows that."""
        is_new = text != self._phase
        if is_new:
            self._phase, self._phase_began_seconds = text, self._clock()
            self._step_seconds.clear()
        self._phase_progress = None
        if done is not None and total is not None:
            elapsed = self._clock() - self._phase_began_seconds
            left = elapsed / done * (total - done) if done > 0 else None
            self._phase_progress = Progress(text, done, total, left)
        self._draw(at_once=is_new)

    def step(self, record: Record) -> None:
        """Show the numbers of one update."""
        self._record = record
        for name, history in (("reward", self._rewards), ("success", self._successes)):
            value = record.get(name)
            if isinstance(value, float | int):
                history.append(float(value))
        self._steps = self._step_progress(record.get("step"))
        self._draw(at_once=False)

    def note(self, text: str) -> None:
        """Print a line above the panel, where it stays."""
        self._notes.append(text)
        self._live.console.print(Text(text))

    def refresh(self) -> None:
        """Bring the clock up to date, at most ten times a second."""
        self._draw(at_once=False)

    def close(self) -> None:
        """Draw the last state, leave it on the screen and give the terminal back."""
        self._live.stop()

    def _step_progress(self, step: float | int | str | None) -> Progress:
        stamps, total = self._step_seconds, self._steps.total
        done = int(step) if isinstance(step, float | int) else self._steps.done + 1
        stamps.append(self._clock())
        if len(stamps) < 2:
            return Progress("step", done, total)
        seconds_a_step = (stamps[-1] - stamps[0]) / (len(stamps) - 1)
        return Progress("step", done, total, seconds_a_step * max(total - done, 0))

    def _draw(self, *, at_once: bool) -> None:
        now = self._clock()
        if at_once or now - self._drawn_seconds >= _SECONDS_BETWEEN_FRAMES:
            self._drawn_seconds = now
            if self._live.console.size != self._size:
                self._start_again()
            self._live.refresh()

    def _start_again(self) -> None:
        """Clear the screen: a terminal that was resized has torn the last frame apart."""
        console = self._live.console
        self._size = console.size
        console.clear()
        for text in self._notes:
            console.print(Text(text))

    def _frame(self) -> "Frame":
        content = PanelContent(
            recipe=self._recipe,
            phase=self._phase,
            progress=self._phase_progress or self._steps,
            elapsed_seconds=self._clock() - self._began_seconds,
            record=self._record,
            rewards=self._rewards.values(),
            successes=self._successes.values(),
        )
        return Frame(content)


@dataclass(frozen=True)
class Frame:
    """Lays the content out for the size that the terminal has when it is drawn."""

    content: PanelContent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Room behind the last line for the "^C" that a terminal echoes, else it would wrap.
        width, height = options.max_width - 2, options.size.height - 1
        for line in render_panel(self.content, width=width, height=height):
            for text, style in line:
                if text:
                    yield Segment(text, Style.parse(style))
            yield Segment.line()
