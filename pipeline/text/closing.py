"""How a chat template closes the policy's turns: where a delta begins.

Invariant: a cut lies right after one atomic special token, so what follows it has the same ids
whatever stands before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from ..errors import ConfigError
from .added_tokens import AddedToken, AddedTokens
from .tokenizer import Tokenizer

MARK = "zqmarkqz"  # stands for what the policy says in conversations made up for probing

_Piece = tuple[str, bool]  # a text, and whether it is a special token


@dataclass(frozen=True)
class Closing:
    """How turns of one kind end.

    Attributes:
      place: the closing token's place among the special tokens after what the policy says,
        from 0, where the conversation goes on.
      token: its text.
      last_token: the closing token where the turn is the last message: the one that the policy
        samples.
      trailer: what the template writes after it there.
      is_opening: the token is the first one of the next message, as the template closes no
        turn; then `last_token` isn't written in the last turn.
    """

    place: int
    token: str
    last_token: str
    trailer: str
    is_opening: bool = False


class Tails:
    """Compares what a template writes after the policy's last word.

    Args:
      tokenizer: its special tokens are the ones that may close a turn.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokens = [AddedToken(text, index) for text, index in tokenizer.specials.items()]
        self._finder = AddedTokens(tokens)

    def closing(self, last: str, followed: str, *, is_opening: bool | None = None) -> Closing:
        """Find where a turn closes.

        Args:
          last: what follows the mark where the turn is the last message.
          followed: what follows it where the conversation goes on.
          is_opening: whether the next message's first special token closes the turn; None for
            so if the template writes no special token after the last turn.

        Raises:
          ConfigError: where no special token closes it.
        """
        ends, goes_on = self._pieces(last), self._pieces(followed)
        same = [one for one, _ in takewhile(_are_equal, zip(ends, goes_on, strict=False))]
        if is_opening or (is_opening is None and not any(special for _, special in ends)):
            place = _next_special(goes_on, len(same))
            token = goes_on[place][0]
            trailer = _join(ends[len(same) :])
            return Closing(_count(goes_on[:place]), token, token, trailer, is_opening=True)
        closed = [place for place, (_, special) in enumerate(same) if special]
        if closed:
            here = there = closed[-1]
        else:
            # The last turn has a closing token of its own, such as <|return|>.
            here, there = _next_special(ends, len(same)), _next_special(goes_on, len(same))
        return Closing(
            place=_count(goes_on[:there]),
            token=goes_on[there][0],
            last_token=ends[here][0],
            trailer=_join(ends[here + 1 :]),
        )

    def cut(self, tail: str, closing: Closing) -> str:
        """Return what follows the mark from the closing token on.

        Raises:
          ConfigError: where another token stands in its place.
        """
        specials = [piece for piece in self._finder.split(tail) if piece.id is not None]
        if closing.place < len(specials):
            start, end = specials[closing.place].start, specials[closing.place].end
            if tail[start:end] == closing.token:
                return tail[start:]
        raise ConfigError(
            f"the chat template closes the policy's turn now by {tail[:40]!r}, now by "
            f"{closing.token!r}, which depends on what was said; use another template"
        )

    def _pieces(self, text: str) -> list[_Piece]:
        return [
            (text[piece.start : piece.end], piece.id is not None)
            for piece in self._finder.split(text)
        ]


def after_mark(text: str) -> str:
    """Return what follows the last mark.

    Raises:
      ConfigError: where there is none.
    """
    _, mark, tail = text.rpartition(MARK)
    if not mark:
        raise ConfigError(
            "the chat template leaves out what the policy said, so it isn't known where a turn "
            "ends; use another template"
        )
    return tail


def _are_equal(pair: tuple[_Piece, _Piece]) -> bool:
    return pair[0] == pair[1]


def _next_special(pieces: Sequence[_Piece], start: int) -> int:
    for place in range(start, len(pieces)):
        if pieces[place][1]:
            return place
    raise ConfigError(
        f"the chat template closes the policy's turn by {_join(pieces[start:])[:60]!r}, which is "
        "no special token of this tokenizer; use the tokenizer that belongs to the template"
    )


def _count(pieces: Sequence[_Piece]) -> int:
    return sum(special for _, special in pieces)


def _join(pieces: Sequence[_Piece]) -> str:
    return "".join([text for text, _ in pieces])
