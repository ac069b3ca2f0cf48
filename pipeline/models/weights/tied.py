"""A head in the file of a model whose embeddings are tied: fine if it is the embedding."""

import numpy as np

from ...errors import ConfigError
from .tensors import Tensors

ROWS_AT_ONCE = 4096


def check_tied_head(tensors: Tensors, embedding: str, head: str) -> None:
    """Refuse a head that differs from the embedding; none at all is fine.

    Args:
      embedding: name of the embedding's tensor.
      head: name of the head's.

    Raises:
      ConfigError: where the file has a head of another shape or with other numbers.
    """
    if head not in tensors.shapes:
        return
    names, rows = [embedding, head], tensors.shapes[embedding][0]
    equal = tensors.shapes[embedding] == tensors.shapes[head] and all(
        _equal_rows(tensors, names, slice(start, min(start + ROWS_AT_ONCE, rows)))
        for start in range(0, rows, ROWS_AT_ONCE)
    )
    if not equal:
        raise ConfigError(
            f"{tensors.origin} have a {head} that differs from {embedding}, but config.json "
            "says tie_word_embeddings: true; set it to false to use the head"
        )


def _equal_rows(tensors: Tensors, names: list[str], rows: slice) -> bool:
    first, second = (part.copy() for part in tensors.read(names, (rows, slice(None))))
    return np.array_equal(first, second)
