"""Models that no family of the Hub describes: their config.json holds our own record."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..models.config import ModelConfig
from ..models.families.family import Family
from ..models.parameters import Weight, declare
from ..models.weights.layouts import Entry, Layout
from ..tables import from_table
from ..text.renderer import TextConfig
from .record import Policy

MODEL_TYPE = "headrace"


def own_settings(policy: Policy) -> dict[str, Any]:
    """Return the config.json of a model that was made here."""
    settings = _config_to(policy.config) | {"vocab_size": policy.vocab_size}
    if isinstance(policy.text, TextConfig):
        settings["text"] = dataclasses.asdict(policy.text)
    return settings


def own_text(settings: Mapping[str, Any]) -> TextConfig | None:
    """Return the alphabet of a model that was made here, if it has one."""
    table = settings.get("text")
    return None if table is None else from_table(TextConfig, table, where="text.")


def _config_from(settings: Mapping[str, Any]) -> ModelConfig:
    return from_table(ModelConfig, settings.get("model", {}), where="model.")


def _config_to(config: ModelConfig) -> dict[str, Any]:
    return {"model_type": MODEL_TYPE, "model": dataclasses.asdict(config)}


def _entries(config: ModelConfig) -> tuple[Entry, ...]:
    """Name every weight as in the parameters, and keep its axes."""
    declared = declare(config, vocab_size=1)
    layers = declared.pop("layers")
    outer = [_entry((name,), weight) for name, weight in declared.items()]
    return (*outer, *(_entry(("layers", name), weight) for name, weight in layers.items()))


def _entry(path: tuple[str, ...], weight: Weight) -> Entry:
    unchanged = Layout(tuple((axis,) for axis in range(len(weight.shape))))
    return Entry(path, ".".join(path), unchanged)


OWN = Family(_config_from, _config_to, _entries, architectures=("HeadraceDecoder",))
