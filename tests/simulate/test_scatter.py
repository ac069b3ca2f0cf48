"""Pictures show every point where it is, in the size that was asked for."""

import unicodedata
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.simulate.scatter import SYMBOLS, Axes, Point, draw_text, ticks
from headrace.pipeline.simulate.scatter_svg import draw_svg

AXES = Axes("mean lag", "share & rate", ("low", "high"), "a <title>", y_percent=True)
POINTS = st.lists(
    st.builds(
        Point,
        x=st.floats(0, 1e6),
        y=st.floats(0, 1e6),
        level=st.integers(0, 1),
        kind=st.sampled_from(sorted(SYMBOLS)),
        text=st.sampled_from(["", "η 4 & K < 16"]),
    ),
    min_size=1,
    max_size=9,
)


@given(st.floats(0, 1e9), st.integers(1, 9))
def test_ticks_reach_the_largest_value_in_equal_steps_and_are_few(largest, most):
    found = ticks(largest, most=most)
    assert found[0] == 0
    assert largest <= found[-1] * (1 + 1e-6)
    assert 2 <= len(found) <= most + 1
    for index, tick in enumerate(found):
        assert abs(tick - index * found[1]) <= 1e-9 * found[-1]


@given(POINTS, st.integers(24, 100), st.integers(6, 30))
def test_a_text_picture_has_the_size_asked_for_and_one_cell_a_character(points, width, height):
    lines = draw_text(points, AXES, width=width, height=height)
    assert len(lines) == height
    assert all(len(line) <= width for line in lines)
    assert all(unicodedata.east_asian_width(c) in "NaANH" or c in "·●◆" for c in "".join(lines))


@given(POINTS)
def test_the_most_important_kind_is_never_covered(points):
    picture = "\n".join(draw_text(points, AXES, width=60, height=12))
    top = max(list(SYMBOLS).index(point.kind) for point in points)
    assert list(SYMBOLS.values())[top] in picture


def test_points_are_where_their_numbers_are():
    points = [Point(0, 0), Point(4, 1, kind="best"), Point(2, 0.5, kind="chosen")]
    lines = draw_text(points, AXES, width=7 + 1 + 41 + len("mean lag"), height=3 + 11)
    body = [line[7:] for line in lines[1:12]]
    assert body[0] == " " * 40 + "●"
    assert body[5] == " " * 20 + "◆"
    assert body[10] == "·"
    assert lines[1].startswith(" 100% ┤")
    assert lines[-1].endswith("4 mean lag")


@given(POINTS)
def test_an_svg_picture_is_well_formed_and_has_every_point(points):
    root = ET.fromstring(draw_svg(points, AXES))
    space = "{http://www.w3.org/2000/svg}"
    groups = root.findall(f"{space}g")
    assert sorted(g.findtext(f"{space}title") for g in groups) == sorted(p.text for p in points)
    width, height = float(root.get("width")), float(root.get("height"))
    for circle in root.iter(f"{space}circle"):
        assert 0 < float(circle.get("cx")) < width
        assert 0 < float(circle.get("cy")) < height
    texts = [text.text for text in root.iter(f"{space}text")]
    assert {"a <title>", "mean lag", "share & rate", "low", "high"} <= set(texts)


def test_svg_shows_the_chosen_on_top_and_its_text():
    root = draw_svg([Point(1, 1, kind="chosen", text="take me"), Point(1, 1)], AXES)
    assert root.index("<title></title>") < root.index("<title>take me</title>")
    assert ">take me</text>" in root
