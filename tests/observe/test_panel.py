from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.pipeline.observe.cells import Progress, length
from headrace.pipeline.observe.panel import WIDEST, PanelContent, render_panel

KEYS = (
    "step",
    "reward",
    "success",
    "lag_mean",
    "lag_max",
    "lag_bound",
    "entropy",
    "tokens_per_second",
    "trajectories_per_hour",
    "sampler_busy",
    "learner_busy",
    "episodes_in_flight",
    "ready_groups",
    "failures",
    "dropped",
    "unknown",
)
SCALARS = st.floats() | st.integers() | st.text(max_size=5)
PROGRESS = st.builds(
    Progress,
    label=st.text(max_size=12),
    done=st.integers(-1, 10**6),
    total=st.integers(0, 10**6),
    seconds_left=st.none() | st.floats(0, 1e6),
)
CONTENTS = st.builds(
    PanelContent,
    recipe=st.text(max_size=30),
    phase=st.text(max_size=30),
    progress=PROGRESS,
    elapsed_seconds=st.floats(0, 1e6),
    record=st.dictionaries(st.sampled_from(KEYS), SCALARS),
    rewards=st.lists(st.floats(-10, 10), max_size=50),
    successes=st.lists(st.floats(0, 1), max_size=50),
)


def content(**record: Any) -> PanelContent:
    return PanelContent("calculator", "training", Progress("step", 3, 10, 65.0), 12.0, record)


def text_of(shown: PanelContent, width: int, height: int) -> str:
    lines = render_panel(shown, width=width, height=height)
    return "\n".join("".join(text for text, _ in line) for line in lines)


@given(CONTENTS, st.integers(0, 140), st.integers(0, 40))
@example(content(), 80, 24)
def test_panel_fits_every_terminal_whatever_the_record(shown, width, height):
    lines = render_panel(shown, width=width, height=height)
    assert len(lines) <= height
    assert {length(line) for line in lines} <= {min(width, WIDEST)}
    assert not any(set(text) & set("\n\r\t\x1b") for line in lines for text, _ in line)


def test_what_matters_most_stays_longest():
    names = ("3/10", "success", "reward", "lag", "sampler", "in flight")
    shown = content(success=0.5, reward=0.4)
    for height in range(3, 20):
        present = [name in text_of(shown, 78, height) for name in names]
        assert present == sorted(present, reverse=True)
    assert all(present)


def test_missing_numbers_are_dashes():
    assert "–  max – of –" in text_of(content(), 78, 24)
    assert "– episodes in flight · – groups ready" in text_of(content(), 78, 24)


def test_numbers_are_shown():
    shown = text_of(content(lag_mean=1.25, lag_max=3.0, lag_bound=8, sampler_busy=0.81), 78, 24)
    assert "1.25  max 3 of 8" in shown
    assert "81 %" in shown
    assert "1:05 left" in shown


def test_broken_bound_is_an_alarm():
    lines = render_panel(content(lag_max=9, lag_bound=8), width=78, height=24)
    assert ("9", "bold red") in [span for line in lines for span in line]
