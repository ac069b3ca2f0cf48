"""Stop strings: found in the text of what was sampled, whatever tokens it is cut into."""

from collections.abc import Callable, Sequence

DecodeText = Callable[[Sequence[int]], str]

# A text that begins in the middle may begin with other characters, but not for long: a character
# has at most 4 bytes, and a token one at least.
_RAGGED_TOKENS = 4


def first_stop(
    decode_text: DecodeText, tokens: Sequence[int], strings: Sequence[str], *, searched: int = 0
) -> int | None:
    """Count the tokens up to the one that completes the first stop string.

    All tokens before it stay, and so does it, though it may say more than the string. The time
    it takes depends on the new tokens only, until a string appears.

    Args:
      decode_text: turns ids into text.
      tokens: of one turn, so far.
      searched: so many of them are known to hold no string.

    Returns:
      None where no string is in the text.

    Example:
      >>> first_stop("".join, ["a", "b<", "/x", ">c", "d"], ["</x>"])
      4
    """
    start = _start_of_tail(decode_text, tokens[:searched], max(map(len, strings)))
    if not _contains(decode_text(tokens[start:]), strings):
        return None
    if not _contains(decode_text(tokens), strings):
        return None
    low, high = searched + 1, len(tokens)  # the text of `high` has a string, of `low - 1` none
    while low < high:
        middle = (low + high) // 2
        if _contains(decode_text(tokens[:middle]), strings):
            high = middle
        else:
            low = middle + 1
    return low


def _start_of_tail(decode_text: DecodeText, searched: Sequence[int], longest: int) -> int:
    """Where to begin so that a string which ends behind these tokens is read whole."""
    count = longest + _RAGGED_TOKENS
    while count < len(searched):
        start = len(searched) - count
        if len(decode_text(searched[start + _RAGGED_TOKENS :])) >= longest:
            return start
        count *= 2
    return 0


def _contains(text: str, strings: Sequence[str]) -> bool:
    return any(string in text for string in strings)
