"""A policy as a value: what a model is, its parameters, and how its text is read and written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..models.config import ModelConfig
from ..models.parameters import Params
from ..text.renderer import TextConfig
from ..text.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class TextFiles:
    """The text side of a pretrained model.

    Attributes:
      tokenizer: of content and markup.
      chat_template: Jinja; None where the model has none.
      special_texts: `"bos_token"`, `"eos_token"` and so on → the token's text, which chat
        templates read.
      stop_ids: the ids that the model's files name as ends of what it says.
      files: name → content of what belongs to them, as it is saved again.
    """

    tokenizer: Tokenizer
    chat_template: str | None
    special_texts: Mapping[str, str]
    stop_ids: tuple[int, ...]
    files: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Policy:
    """A model with its parameters and its text side.

    A trained one is `dataclasses.replace(policy, params=...)`.

    Attributes:
      config: the decoder.
      vocab_size: rows of the embedding; a tokenizer may have fewer ids.
      params: as `models.parameters.init` gives them.
      text: the files of a pretrained model, the alphabet of a character-level one, or None.
      settings: the content of the config.json that it was loaded with; empty for a model that
        was made here.
    """

    config: ModelConfig
    vocab_size: int
    params: Params = field(repr=False)
    text: TextFiles | TextConfig | None = None
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
