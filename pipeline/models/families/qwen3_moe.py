"""Qwen3 with a mixture of experts in every layer."""

from typing import Any

from ..config import ModelConfig
from ..traits import AttentionTraits, ExpertTraits, Traits
from .family import Family, HubConfig
from .hub_config import (
    activation_name,
    demand,
    or_default,
    read_activation,
    read_integer,
    read_one_window,
    read_sizes,
    usual_entries,
    write_sizes,
)
from .hub_rope import read_rope, write_rope

ARCHITECTURES = ("Qwen3MoeForCausalLM",)
DEFAULTS = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
}


def config_from(hub: HubConfig) -> ModelConfig:
    """Read config.json."""
    hub = {**DEFAULTS, **hub}
    _refuse_dense_layers(hub)
    theta, rope = read_rope(hub)
    bias = or_default(hub, "attention_bias", False)
    window = (
        hub.get("sliding_window", 4096) if or_default(hub, "use_sliding_window", False) else None
    )
    traits = Traits(
        attention=AttentionTraits(qkv_bias=bias, output_bias=bias, **read_one_window(hub, window)),
        rope=rope,
        experts=ExpertTraits(
            count=read_integer(
                hub, "num_experts" if "num_experts" in hub else "num_local_experts"
            ),
            per_token=read_integer(hub, "num_experts_per_tok"),
            normalize=or_default(hub, "norm_topk_prob", False),
        ),
        activation=read_activation(hub),
    )
    sizes = read_sizes({**hub, "intermediate_size": hub["moe_intermediate_size"]}, tied=False)
    return ModelConfig(**sizes, rope_theta=theta, qk_norm=True, traits=traits)


def config_to(config: ModelConfig) -> dict[str, Any]:
    """Write config.json."""
    traits = config.traits
    window = traits.attention.window
    return {
        **write_sizes(config, "qwen3_moe", ARCHITECTURES[0]),
        **write_rope(config),
        "hidden_act": activation_name(config),
        "attention_bias": traits.attention.qkv_bias,
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "moe_intermediate_size": config.ffn_width,
        "num_experts": traits.experts.count,
        "num_experts_per_tok": traits.experts.per_token,
        "norm_topk_prob": traits.experts.normalize,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _refuse_dense_layers(hub: HubConfig) -> None:
    dense = or_default(hub, "mlp_only_layers", [])
    demand(not dense, "mlp_only_layers", dense, "empty: every layer has experts")
    step = or_default(hub, "decoder_sparse_step", 1)
    demand(step == 1, "decoder_sparse_step", step, "1: every layer has experts")


QWEN3_MOE = Family(config_from, config_to, usual_entries, ARCHITECTURES)
