"""Stop strings: found in the text of what was sampled, whatever tokens it is cut into."""

from collections.abc import Callable, Sequence

DecodeText = Callable[[Sequence[int]], str]


def first_stop(
    decode_text: DecodeText, tokens: Sequence[int], strings: Sequence[str]
) -> int | None:
    """Count the tokens up to the one that completes the first stop string.

    All tokens before it stay, and so does it, though it may say more than the string.

    Args:
      decode_text: turns ids into text.
      tokens: of one turn, so far.

    Returns:
      None where no string is in the text.

    Example:
      >>> first_stop("".join, ["a", "b<", "/x", ">c", "d"], ["</x>"])
      4
    """
    if not _contains(decode_text(tokens), strings):
        return None
    low, high = 1, len(tokens)  # the text of `high` tokens has a string, that of `low - 1` none
    while low < high:
        middle = (low + high) // 2
        if _contains(decode_text(tokens[:middle]), strings):
            high = middle
        else:
            low = middle + 1
    return low


def _contains(text: str, strings: Sequence[str]) -> bool:
    return any(string in text for string in strings)
