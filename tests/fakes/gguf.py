"""Tiny GGUF files, written by the package `gguf` from the Hub's names and order of rows.

The changes that llama.cpp's conversion makes are written here from its description: the halves
of each head take turns in llama-type files, and 1 is added to Gemma's norms.
"""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

STORED = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
GEMMA_STORED = STORED | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
EXPERT_STORED = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
}


def write_gguf(
    path: Path,
    fields: dict[str, Any],
    tensors: dict[str, np.ndarray],
    *,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> Path:
    """Write a file; matrices of whole blocks are stored as `kind`."""
    architecture = fields["general.architecture"]
    writer = GGUFWriter(path, architecture)
    for key, value in fields.items():
        if key != "general.architecture":
            _add(writer, key, value)
    for name, tensor in converted(fields, tensors).items():
        if tensor.ndim == 2 and tensor.shape[1] % 32 == 0:
            writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def converted(fields: dict[str, Any], tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Give the tensors as the file holds them."""
    architecture = fields["general.architecture"]
    stored: dict[str, np.ndarray] = {}
    experts: dict[str, list[np.ndarray]] = {}
    for name, whole in tensors.items():
        tensor = _changed(name, whole, fields)
        if ".experts." in name:
            prefix, _, part = name.partition(".mlp.experts.")
            expert_name = f"blk.{prefix.split('.')[-1]}.{EXPERT_STORED[part.split('.')[1]]}.weight"
            experts.setdefault(expert_name, []).append(tensor)
        else:
            stored[_stored_name(name, architecture)] = tensor
    return stored | {name: np.stack(parts) for name, parts in experts.items()}


def _changed(name: str, tensor: np.ndarray, fields: dict[str, Any]) -> np.ndarray:
    architecture = fields["general.architecture"]
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        kind = "head_count" if "q_proj" in name else "head_count_kv"
        return taking_turns(tensor, fields[f"llama.attention.{kind}"])
    if architecture in ("gemma2", "gemma3") and "norm" in name:
        return tensor + 1
    return tensor


def taking_turns(rows: np.ndarray, heads: int) -> np.ndarray:
    """Put row i of a head's first half before row i of its second half."""
    result = np.empty_like(rows)
    width = len(rows) // heads
    for head in range(heads):
        for index in range(width // 2):
            start = head * width
            result[start + 2 * index] = rows[start + index]
            result[start + 2 * index + 1] = rows[start + width // 2 + index]
    return result


def _stored_name(name: str, architecture: str) -> str:
    if name == "rope_freqs.weight":
        return name
    names = GEMMA_STORED if architecture in ("gemma2", "gemma3") else STORED
    body, _, kind = name.rpartition(".")
    if not body.startswith("model.layers."):
        return f"{names[body]}.{kind}"
    _, _, layer, part = body.split(".", 3)
    return f"blk.{layer}.{names[part]}.{kind}"


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
