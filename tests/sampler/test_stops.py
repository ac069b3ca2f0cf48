"""Stop strings, searched as tokens come, against a search in the whole text."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.pipeline.sampler.stops import DecodeText, first_stop

# As tokenizers do: a token is some bytes, perhaps a part of a character, or nothing at all.
PIECES = [b"a", b"b", b" ", b"<", b"/x", b">c", "é".encode()[:1], "é".encode()[1:], b"", b"ab<"]


def of_bytes(tokens: Sequence[int]) -> str:
    return b"".join(PIECES[token] for token in tokens).decode(errors="replace")


def without_leading_space(tokens: Sequence[int]) -> str:
    return of_bytes(tokens).removeprefix(" ")


def slowly(decode_text: DecodeText, tokens: Sequence[int], strings: Sequence[str]) -> int | None:
    """The fewest tokens with a stop string in their text."""
    for count in range(1, len(tokens) + 1):
        if any(string in decode_text(tokens[:count]) for string in strings):
            return count
    return None


Tokens = st.lists(st.integers(0, len(PIECES) - 1), max_size=60)
Strings = st.lists(
    st.sampled_from(["</x>", "<a", " a", "a b", "é", "éé", "b<", "ab</xab", "c a<"]),
    min_size=1,
    max_size=3,
)


@given(
    st.sampled_from([of_bytes, without_leading_space]),
    Tokens,
    Strings,
    st.lists(st.integers(1, 9), min_size=60, max_size=60),
)
@example(without_leading_space, [0] * 20 + [2, 0], [" a"], [20, 1, 1] + [1] * 57)
@example(of_bytes, [0] * 20 + [6, 7], ["é"], [21] + [1] * 59)
@example(of_bytes, [3] + [8] * 40 + [0], ["<a"], [41] + [1] * 59)
def test_what_is_found_piece_by_piece_is_what_a_search_of_the_whole_text_finds(
    decode_text: DecodeText, tokens: list[int], strings: list[str], sizes: list[int]
) -> None:
    found, searched = None, 0
    for size in sizes:
        end = min(searched + size, len(tokens))
        found = first_stop(decode_text, tokens[:end], strings, searched=searched)
        searched = end
        if found is not None:
            break
    assert found == slowly(decode_text, tokens, strings)


@pytest.mark.parametrize("length", [300, 3000])
def test_a_long_turn_decodes_only_its_end(length: int) -> None:
    decoded = []

    def decode_text(tokens: Sequence[int]) -> str:
        decoded.append(len(tokens))
        return "".join("ab"[token] for token in tokens)

    tokens = [0] * length
    assert first_stop(decode_text, [*tokens, 0, 0], ["ba", "abc"], searched=length) is None
    assert sum(decoded) < 20
    assert first_stop(decode_text, [*tokens, 1, 0], ["ba", "abc"], searched=length) == length + 2
