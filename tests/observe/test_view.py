import io
import os
import re

import pytest

from headrace.pipeline.observe.live import LiveView
from headrace.pipeline.observe.view import PlainView, open_view

RECORD = {"step": 2, "reward": 0.5, "success": 0.25, "lag_mean": 1.5, "lag_max": 3, "odd": "x"}
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Clock:
    def __init__(self):
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _terminal_kind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")


def plain(total_steps: int = 40) -> tuple[PlainView, io.StringIO, Clock]:
    stream, clock = io.StringIO(), Clock()
    return PlainView(total_steps, stream=stream, clock=clock), stream, clock


def test_plain_view_writes_one_aligned_ascii_line_a_step():
    view, stream, _ = plain()
    view.step(RECORD)
    view.step({**RECORD, "step": 10, "tokens_per_second": 12345.0, "reward": -0.5})
    first, second = stream.getvalue().splitlines()
    assert first.startswith("step  2/40  reward  0.500  success 0.250  lag  1.50  max  3")
    assert len(first) == len(second)
    assert stream.getvalue().isascii()


def test_plain_view_shows_dashes_for_missing_numbers():
    view, stream, _ = plain()
    view.step({})
    assert re.match(r"step  -/40  reward +-  success +-", stream.getvalue())


def test_plain_view_says_a_phase_once_its_progress_now_and_then_and_its_end():
    view, stream, clock = plain()
    view.phase("compiling")
    view.phase("compiling")
    for done in range(1, 101):
        view.phase("warm start", done, 100)
        clock.seconds += 0.25
    shown = stream.getvalue().splitlines()
    assert shown == [
        "compiling",
        "warm start 1/100",
        "warm start 41/100",
        "warm start 81/100",
        "warm start 100/100",
    ]


def test_live_view_is_chosen_on_a_terminal_only():
    with open_view("calculator", 3, stream=io.StringIO()) as view:
        assert isinstance(view, PlainView)
    with open_view("calculator", 3, stream=Terminal()) as view:
        assert isinstance(view, LiveView)
    with open_view("calculator", 3, stream=Terminal(), kind="plain") as view:
        assert isinstance(view, PlainView)


def test_plain_view_is_chosen_where_a_terminal_cannot_show_more(monkeypatch: pytest.MonkeyPatch):
    latin = Terminal()
    latin.encoding = "iso-8859-1"
    with open_view("calculator", 3, stream=latin) as view:
        assert isinstance(view, PlainView)
    monkeypatch.setenv("TERM", "dumb")
    with open_view("calculator", 3, stream=Terminal()) as view:
        assert isinstance(view, PlainView)


def follow(view, clock: Clock | None = None) -> None:
    view.phase("compiling")
    view.note("a note [with brackets] that stays")
    for done in range(3):
        view.phase("warm start", done, 3)
    view.phase("training")
    for step in range(1, 4):
        view.step({**RECORD, "step": step})
        view.refresh()
        if clock is not None:
            clock.seconds += 1.0


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (40, 10), (10, 3), (1, 1)])
def test_live_view_draws_on_a_terminal_of_any_size(size, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(size[0]))
    monkeypatch.setenv("LINES", str(size[1]))
    terminal, clock = Terminal(), Clock()
    view = LiveView("calculator", 3, stream=terminal, clock=clock)
    follow(view, clock)
    view.close()
    view.close()
    assert terminal.getvalue().count(HIDE) == terminal.getvalue().count(SHOW) == 1


def test_live_view_shows_notes_and_numbers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    terminal, clock = Terminal(), Clock()
    view = LiveView("calculator", 3, stream=terminal, clock=clock)
    follow(view, clock)
    view.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "a note [with brackets] that stays" in shown
    assert "headrace calculator" in shown
    assert "1.50  max 3 of –" in shown
    assert "3/3" in shown


def test_live_view_of_a_run_that_goes_on_begins_where_that_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    terminal = Terminal()
    with open_view("calculator", 3, done=2, stream=terminal):
        pass
    assert "2/3" in terminal.getvalue()


def test_live_view_draws_at_most_ten_frames_a_second():
    terminal, clock = Terminal(), Clock()
    view = LiveView("calculator", 3, stream=terminal, clock=clock)
    view.phase("training")
    drawn = len(terminal.getvalue())
    for _ in range(100):
        view.refresh()
    assert len(terminal.getvalue()) == drawn
    clock.seconds += 0.2
    view.refresh()
    assert len(terminal.getvalue()) > drawn
    view.close()


def test_live_view_draws_afresh_when_the_terminal_is_resized(monkeypatch: pytest.MonkeyPatch):
    sizes = [os.terminal_size((80, 24))]
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: sizes[-1])
    terminal, clock = Terminal(), Clock()
    view = LiveView("calculator", 3, stream=terminal, clock=clock)
    view.note("a note that stays")
    sizes.append(os.terminal_size((50, 20)))
    clock.seconds += 1.0
    view.refresh()
    view.close()
    before, _, after = terminal.getvalue().partition("\x1b[2J")
    assert after.count("a note that stays") == before.count("a note that stays") == 1


class Breaking(Terminal):
    """Takes some writes, then fails each."""

    def __init__(self, error: Exception, good_writes: int):
        super().__init__()
        self.error, self.good_writes, self.tries = error, good_writes, 0

    def write(self, text: str, /) -> int:
        self.tries += 1
        if self.tries > self.good_writes:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("kind", ["plain", "live"])
@pytest.mark.parametrize("good_writes", [0, 2])
@pytest.mark.parametrize(
    "error", [BrokenPipeError(), OSError(5, "I/O error"), ValueError("closed")]
)
def test_a_stream_that_breaks_does_not_end_the_run(kind, good_writes: int, error: Exception):
    stream = Breaking(error, good_writes)
    with open_view("calculator", 3, stream=stream, kind=kind) as view:
        follow(view)
    assert stream.tries == good_writes + 1


@pytest.mark.parametrize("kind", ["auto", "plain", "live"])
def test_nothing_is_shown_without_a_stream_or_on_a_closed_one(kind):
    closed = Terminal()
    closed.close()
    for stream in (None, closed):
        with open_view("calculator", 3, stream=stream, kind=kind) as view:
            follow(view)


@pytest.mark.parametrize("kind", ["plain", "live"])
def test_characters_that_the_encoding_lacks_are_replaced(kind):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with open_view("calculator", 3, stream=stream, kind=kind) as view:
        assert isinstance(view, PlainView)
        view.note("Grüße \ud800")
    stream.seek(0)
    assert stream.read() == "Gr??e ?\n"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_terminal_is_restored_on_every_exit(error: type[BaseException]):
    terminal = Terminal()

    def fail() -> None:
        with open_view("calculator", 3, stream=terminal) as view:
            view.phase("training")
            raise error

    with pytest.raises(error):
        fail()
    assert terminal.getvalue().rindex(SHOW) > terminal.getvalue().rindex(HIDE)
