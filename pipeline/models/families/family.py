"""What the loader knows of a family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..config import ModelConfig
from ..weights.layouts import Entry

HubConfig = Mapping[str, Any]
"""The contents of a checkpoint's config.json."""


@dataclass(frozen=True)
class Family:
    """How one `model_type` of the Hub is read and written.

    Attributes:
      config_from: from config.json to a model; a `ConfigError` says what isn't supported.
      config_to: from a model to config.json, with what decides its numbers; `config_from` of
        it is the same model.
      entries: the names and layouts of its tensors, one for each weight of `declare`.
      architectures: the values of config.json's "architectures" that have these tensors; the
        first is written.
      prefixes: what stands in files for the "model." that names of `entries` begin with; the
        first is written.
      ignored: beginnings of tensor names that a file may have and that aren't read.
    """

    config_from: Callable[[HubConfig], ModelConfig]
    config_to: Callable[[ModelConfig], dict[str, Any]]
    entries: Callable[[ModelConfig], tuple[Entry, ...]]
    architectures: tuple[str, ...]
    prefixes: tuple[str, ...] = ("model.",)
    ignored: tuple[str, ...] = ()
