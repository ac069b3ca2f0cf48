"""The tensors of a GGUF file under the Hub's names and in the Hub's order of rows, as float32.

Only the rows that are asked for are dequantised. Two changes that the format makes are undone:
llama-type files hold the halves of each head, which are rotated together, row by row in turn;
and Gemma's norms are stored with 1 added.

Reference: permute and norm_shift in the repository ggml-org/llama.cpp, convert_hf_to_gguf.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from ...errors import ConfigError
from ...gguf_header import GgufHeader, GgufTensor
from .gguf_names import ROPE_FACTORS, hub_name
from .layouts import Shape, Slices

SANDWICH = ("gemma2", "gemma3")
_PERMUTED = {"llama": {"self_attn.q_proj": "head_count", "self_attn.k_proj": "head_count_kv"}}
_BLOCKS_AT_ONCE = 256  # few enough for a core's cache, enough to be worth NumPy's calls


@dataclass(frozen=True)
class _Source:
    """Where a tensor of the Hub's lies in the file.

    Attributes:
      heads: 0, or the heads whose halves' rows take turns.
      added: to every number, in the file.
    """

    tensor: GgufTensor
    heads: int = 0
    added: float = 0.0

    def read(self, data: np.ndarray, part: Slices) -> np.ndarray:
        """Dequantise a part."""
        shape = self.tensor.shape
        rows_first = shape if len(shape) > 1 else (*shape, 1)
        wide = self._read_rows(data, rows_first, part[0])
        if self.added:
            wide = wide - np.float32(self.added)
        return wide[:, part[1]] if len(shape) > 1 else wide[:, 0]

    def _read_rows(self, data: np.ndarray, shape: Shape, rows: slice) -> np.ndarray:
        kind = GGMLQuantizationType(self.tensor.kind)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        row_bytes = shape[1] // block * block_bytes
        end = self.tensor.start + shape[0] * row_bytes
        stored = data[self.tensor.start : end].reshape(shape[0], row_bytes)
        chosen = stored[self._order(shape[0])[rows]] if self.heads else stored[rows]
        try:
            wide = dequantize(_in_long_rows(chosen, block_bytes), kind)
        except NotImplementedError as error:
            raise ConfigError(
                f"a tensor of the GGUF file is of type {kind.name}, which can't be read: {error}; "
                "get the model in another quantisation"
            ) from error
        return wide.reshape(-1, shape[1])

    def _order(self, rows: int) -> np.ndarray:
        """Give for each row of the Hub's the one in the file."""
        return np.arange(rows).reshape(self.heads, -1, 2).swapaxes(1, 2).ravel()


class GgufTensors:
    """A GGUF file's tensors.

    Raises:
      ConfigError: where one is of an unknown type, or reaches beyond the file's end.
    """

    def __init__(self, path: Path, header: GgufHeader) -> None:
        self.origin = f"the tensors of {path}"
        self._path = path
        _check_kinds(path, header)
        self._sources = {
            name: source
            for stored, tensor in header.tensors.items()
            if stored != ROPE_FACTORS
            for name, source in _named(stored, tensor, header)
        }
        self.unreadable: Mapping[str, str] = {}
        self._rope_factors = header.tensors.get(ROPE_FACTORS)
        self.shapes: Mapping[str, Shape] = {
            name: source.tensor.shape for name, source in self._sources.items()
        }

    def rope_factors(self) -> np.ndarray | None:
        """Return by what each rotary wavelength grows, f32[h / 2], if the file has it."""
        if self._rope_factors is None:
            return None
        data = np.memmap(self._path, np.uint8, mode="r")
        return _Source(self._rope_factors).read(data, (slice(None),))

    def read(self, names: Sequence[str], part: Slices) -> Iterator[np.ndarray]:
        """Yield the same part of each named tensor."""
        for name in names:
            # Mapped anew for each, so that pages of earlier ones don't stay in memory.
            data = np.memmap(self._path, np.uint8, mode="r")
            yield self._sources[name].read(data, part)


def _named(stored: str, tensor: GgufTensor, header: GgufHeader) -> Iterator[tuple[str, _Source]]:
    """Yield the Hub's name and the source of a tensor, or of every expert in it."""
    architecture = header.fields.get("general.architecture", "")
    name = hub_name(stored, sandwich=architecture in SANDWICH)
    if "{expert}" not in name:
        yield name, _source(name, tensor, header)
        return
    count, *one = tensor.shape
    each = num_bytes(tensor) // count
    for expert in range(count):
        part = replace(tensor, shape=tuple(one), start=tensor.start + expert * each)
        yield name.format(expert=expert), _Source(part)


def _source(name: str, tensor: GgufTensor, header: GgufHeader) -> _Source:
    architecture = header.fields.get("general.architecture", "")
    if architecture in SANDWICH and name.endswith("norm.weight"):
        return _Source(tensor, added=1.0)
    for projection, count in _PERMUTED.get(architecture, {}).items():
        if projection in name:
            heads = header.fields.get(f"{architecture}.attention.head_count", 1)
            return _Source(tensor, header.fields.get(f"{architecture}.attention.{count}", heads))
    return _Source(tensor)


def num_bytes(tensor: GgufTensor) -> int:
    """Give a tensor's size in the file."""
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
    return int(np.prod(tensor.shape, dtype=np.int64)) // block * block_bytes


def _in_long_rows(rows: np.ndarray, block_bytes: int) -> np.ndarray:
    """Give the same blocks in longer rows: the package handles a few rows at a time."""
    blocks = rows.size // block_bytes
    count = int(np.gcd(blocks, _BLOCKS_AT_ONCE))
    return np.ascontiguousarray(rows).reshape(-1, count * block_bytes)


def _check_kinds(path: Path, header: GgufHeader) -> None:
    known = {kind.value for kind in GGML_QUANT_SIZES}
    unknown = [name for name, tensor in header.tensors.items() if tensor.kind not in known]
    if unknown:
        raise ConfigError(f"{path} has tensors of unknown types: {', '.join(unknown)}")
    size = path.stat().st_size
    cut = [name for name, it in header.tensors.items() if it.start + num_bytes(it) > size]
    if cut:
        raise ConfigError(f"{path} ends before the data of {', '.join(cut)}; get it again")
