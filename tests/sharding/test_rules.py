"""The table of axes: what it maps, what it refuses."""

import jax
import pytest
from jax.sharding import PartitionSpec

from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.parameters import logical_axes
from headrace.sharding.rules import LEARNER_RULES, SAMPLER_RULES, partition_spec


def test_names_become_mesh_axes() -> None:
    axes = ("layers", "width", None, "ffn")
    spec = partition_spec(axes, LEARNER_RULES)
    assert spec == PartitionSpec(None, "fsdp", None, "tensor")
    assert partition_spec(axes, SAMPLER_RULES) == PartitionSpec(None, None, None, "tensor")
    assert partition_spec(("rows",), {"rows": ("data", "fsdp")}) == PartitionSpec(("data", "fsdp"))


@pytest.mark.parametrize(
    ("axes", "rules"),
    [
        (("rows", "tokens", "width"), LEARNER_RULES),
        (("heads", "ffn"), LEARNER_RULES),
        (("a", "b"), {"a": ("x", "y"), "b": "y"}),
    ],
)
def test_collisions_are_refused(axes: tuple[str, ...], rules: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"put mesh axis '(fsdp|tensor|y)' on two dimensions"):
        partition_spec(axes, rules)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="no rule for the logical axis 'head'; did you mean"):
        partition_spec(("head",), LEARNER_RULES)
    with pytest.raises(ValueError, match=r"no rule for the logical axis 'xyz'; known are"):
        partition_spec(("xyz",), LEARNER_RULES)


@pytest.mark.parametrize("rules", [LEARNER_RULES, SAMPLER_RULES])
def test_the_tables_cover_all_weights_of_the_decoder(rules: dict[str, str]) -> None:
    config = ModelConfig(
        num_layers=2,
        width=8,
        num_heads=2,
        num_kv_heads=1,
        head_width=4,
        ffn_width=16,
        qk_norm=True,
        tied_embeddings=False,
    )
    axes = logical_axes(config)
    leaves = jax.tree.leaves(axes, is_leaf=lambda node: isinstance(node, tuple))
    assert len(leaves) > 10
    for leaf in leaves:
        partition_spec(leaf, rules)
