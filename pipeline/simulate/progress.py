"""Shows on standard error how far a tuning is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def open_progress(stream: TextIO, name: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of the simulations that are done and planned.

    On a terminal a bar with the time that is left; else one line at the start.
    """
    console = Console(file=stream)
    if not console.is_terminal:
        yield _Line(console, name).update
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"simulating {name}", total=None)

        def update(done: int, planned: int) -> None:
            progress.update(task, completed=done, total=planned)

        yield update


class _Line:
    """Says what is planned, once."""

    def __init__(self, console: Console, name: str):
        self._console = console
        self._name = name
        self._said = False

    def update(self, done: int, planned: int) -> None:
        """Note progress."""
        if not self._said:
            self._said = True
            self._console.print(f"{self._name}: at most {planned} simulations", highlight=False)
