"""The names that Llama-like checkpoints on the Hub give to their tensors.

A family is a sum of these groups of entries, with its own where it differs. The names of ours
are those that `parameters.declare` gives.
"""

from dataclasses import replace

from .layouts import FROM_HEADS, HEADS, MATRIX, TABLE, TO_HEADS, VECTOR, Entry, Layout

LAYERS = "layers"
HEAD_NAME = "lm_head.weight"
_FFN = ("gate", "up", "down")
_LAYER = "model.layers.{layer}."
_LAYOUTS = {"query": TO_HEADS, "key": TO_HEADS, "value": TO_HEADS, "output": FROM_HEADS}
_LETTERS = {"query": "q", "key": "k", "value": "v", "output": "o"}


def layer_entry(ours: str, name: str, layout: Layout) -> Entry:
    """Name one weight of every layer.

    Args:
      ours: its name in the parameters.
      name: its name in the file, after "model.layers.{layer}.".

    Example:
      >>> layer_entry("ffn_norm", "mlp_norm.weight", VECTOR).tensor_name((2,))
      'model.layers.2.mlp_norm.weight'
    """
    return Entry((LAYERS, ours), _LAYER + name, layout)


def attention_entries() -> tuple[Entry, ...]:
    """Name the four projections of attention."""
    return tuple(
        layer_entry(ours, f"self_attn.{letter}_proj.weight", _LAYOUTS[ours])
        for ours, letter in _LETTERS.items()
    )


def bias_entries(*projections: str) -> tuple[Entry, ...]:
    """Name the biases of some projections: of "query", "key", "value" [H, h], "output" [D].

    Example:
      >>> [entry.path[-1] for entry in bias_entries("query", "key")]
      ['query_bias', 'key_bias']
    """
    return tuple(
        layer_entry(
            f"{ours}_bias",
            f"self_attn.{_LETTERS[ours]}_proj.bias",
            VECTOR if ours == "output" else HEADS,
        )
        for ours in projections
    )


def qk_norm_entries() -> tuple[Entry, ...]:
    """Name the norms of queries and keys, each [h]."""
    return (
        layer_entry("query_norm", "self_attn.q_norm.weight", VECTOR),
        layer_entry("key_norm", "self_attn.k_norm.weight", VECTOR),
    )


def ffn_entries() -> tuple[Entry, ...]:
    """Name the three matrices of the gated feed-forward layer."""
    return tuple(layer_entry(ours, f"mlp.{ours}_proj.weight", MATRIX) for ours in _FFN)


def ffn_bias_entries() -> tuple[Entry, ...]:
    """Name the biases of the gated feed-forward layer."""
    return tuple(layer_entry(f"{ours}_bias", f"mlp.{ours}_proj.bias", VECTOR) for ours in _FFN)


def expert_entries(module: str = "mlp") -> tuple[Entry, ...]:
    """Name the router [D, E], and the matrices of every expert, [E, D, F] or [E, F, D]."""
    experts = (
        layer_entry(f"expert_{ours}", f"{module}.experts.{{expert}}.{ours}_proj.weight", MATRIX)
        for ours in _FFN
    )
    return (layer_entry("router", f"{module}.gate.weight", MATRIX), *experts)


def norm_entries() -> tuple[Entry, ...]:
    """Name the norms before attention and before the feed-forward layer."""
    return (
        layer_entry("attention_norm", "input_layernorm.weight", VECTOR),
        layer_entry("ffn_norm", "post_attention_layernorm.weight", VECTOR),
    )


def sandwich_norm_entries() -> tuple[Entry, ...]:
    """Name Gemma's four norms: before and after attention and the feed-forward layer."""
    return (
        layer_entry("attention_norm", "input_layernorm.weight", VECTOR),
        layer_entry("attention_post_norm", "post_attention_layernorm.weight", VECTOR),
        layer_entry("ffn_norm", "pre_feedforward_layernorm.weight", VECTOR),
        layer_entry("ffn_post_norm", "post_feedforward_layernorm.weight", VECTOR),
    )


def outer_entries(*, tied: bool) -> tuple[Entry, ...]:
    """Name what stands around the layers; tied embeddings have no head of their own."""
    entries = (
        Entry(("embedding",), "model.embed_tokens.weight", TABLE),
        Entry(("final_norm",), "model.norm.weight", VECTOR),
    )
    return entries if tied else (*entries, Entry(("head",), HEAD_NAME, TABLE))


def renamed(entries: tuple[Entry, ...], start: str, replacement: str) -> tuple[Entry, ...]:
    """Exchange the start of the file's names, as in "model." for "model.language_model."."""
    return tuple(
        replace(entry, name=replacement + entry.name.removeprefix(start))
        if entry.name.startswith(start)
        else entry
        for entry in entries
    )
