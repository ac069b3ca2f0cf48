"""GGUF's names of tensors and the Hub's. A name that isn't known stays as it is."""

import re

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
ROPE_FACTORS = "rope_freqs.weight"

_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_OUTER = {
    EMBEDDING: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    HEAD: "lm_head.weight",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
}
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def hub_name(name: str, *, sandwich: bool = False) -> str:
    """Translate a name; where it holds `{expert}`, the tensor is a stack of experts.

    Args:
      sandwich: the model has norms before and after each part of a layer, as Gemma does.

    Example:
      >>> hub_name("blk.3.attn_q.weight")
      'model.layers.3.self_attn.q_proj.weight'
      >>> hub_name("blk.0.ffn_norm.weight", sandwich=True)
      'model.layers.0.pre_feedforward_layernorm.weight'
    """
    match = _LAYER.fullmatch(name)
    if match is None:
        return _OUTER.get(name, name)
    layer, part, kind = match.groups()
    parts = _INNER | _SANDWICH if sandwich else _INNER
    return f"model.layers.{layer}.{parts[part]}.{kind}" if part in parts else name
