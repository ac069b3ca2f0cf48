"""What the pipeline needs of a tokenizer.

Invariant: content never gives a special id. What a user or a tool writes goes through `encode`,
or through `encode_markup` inside a `plain` span; only the text of a chat template, and the policy
by sampling, put special ids into a sequence.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

Span = tuple[int, int]


class Tokenizer(Protocol):
    """Maps text to ids and back. Pure: equal arguments, equal ids."""

    @property
    def vocab_size(self) -> int:
        """All ids are below this."""
        ...

    @property
    def specials(self) -> Mapping[str, int]:
        """The texts that are one token each in markup, such as `<|im_end|>`, with their ids."""
        ...

    def special_id(self, text: str) -> int:
        """Return the id of a special token.

        Raises:
          ConfigError: where the vocabulary has none of this text.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of content: no special one, whatever the text. Never raises."""
        ...

    def encode_markup(self, text: str, plain: Sequence[Span] = ()) -> list[int]:
        """Return the ids of a template's text, in which special tokens stand by their text.

        Args:
          plain: spans `(start, end)` of characters, in order and disjoint, whose text is content:
            no special token is found in one, or across its ends.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, specials by name, invalid bytes as U+FFFD. Never raises."""
        ...

    def token_bytes(self, index: int) -> bytes:
        """Return the bytes that a token stands for. Joined and decoded they give `decode`."""
        ...
