"""Stand-ins for special tokens: contents come back whole, and no special is found in them."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.text.veil import Marked, Veil, lift

SPECIALS = ("<|im_end|>", "<|im_start|>", "<a>", "<a><b>", "[/INST]")
VEIL = Veil(SPECIALS)
PARTS = st.sampled_from([*SPECIALS, "<", ">", "|>", "<|im_", "end|>", "a", " ", "é🙂", "\ud800"])
TEXTS = st.lists(PARTS | st.text(max_size=3), max_size=8).map("".join)


def clean(text: str) -> str:
    return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)


@given(TEXTS)
def test_lift_puts_back_what_hide_took(text: str) -> None:
    assert lift(VEIL.hide(text)).text == clean(text)
    assert lift(VEIL.hide_in({"k": [text, 1, None]})["k"][0]).text == clean(text)


@given(TEXTS, TEXTS, TEXTS)
def test_no_special_lies_in_or_across_a_content(left: str, text: str, right: str) -> None:
    hidden = VEIL.hide(text)
    assert not any(special in hidden for special in SPECIALS)
    template_text = [clean(left), clean(right)]
    joined = hidden.join(template_text)
    found = sum(joined.count(special) for special in SPECIALS)
    assert found == sum(part.count(special) for part in template_text for special in SPECIALS)


@given(TEXTS, TEXTS)
def test_spans_are_where_the_hidden_texts_are(left: str, right: str) -> None:
    for special in SPECIALS:
        marked = lift(f"{clean(left)}{VEIL.hide(special)}{clean(right)}")
        (span,) = marked.plain
        assert marked.text[slice(*span)] == special


def test_ordinary_text_has_no_stand_ins() -> None:
    assert VEIL.hide("a < b > c") == "a < b > c"
    assert lift("a <|im_end|>") == Marked("a <|im_end|>")
    assert VEIL.hide("") == ""
    assert Veil([]).hide("<|im_end|>") == "<|im_end|>"
