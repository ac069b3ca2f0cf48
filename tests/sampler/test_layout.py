"""Sizes that a mesh can't cut are refused before anything is compiled."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.layout import check_bits, make_layout
from headrace.sharding.mesh import FSDP, TENSOR
from tests.sampler.helpers import MODEL, VOCAB

SIZES = SamplerConfig(rows=4, prefill_lanes=4, context_tokens=32, page_tokens=4)


def make_mesh(data: int, tensor: int) -> jax.sharding.Mesh:
    devices = np.array(jax.devices()[: data * tensor]).reshape(data, tensor)
    return jax.sharding.Mesh(devices, (FSDP, TENSOR))


@pytest.mark.parametrize(
    ("changes", "data", "tensor", "message"),
    [
        ({"rows": 5}, 2, 1, r"sampler.rows must be a multiple of 2.*got 5"),
        ({"prefill_lanes": 3}, 2, 1, r"sampler.prefill_lanes must be a multiple of 2.*got 3"),
        ({}, 1, 4, r"num_kv_heads must be a multiple of 4.*got 2"),
        # Each shard needs pages for a request at full length, or that one waits for ever.
        ({"pages": 19}, 2, 1, r"sampler.pages must be >= 20, got 19"),
    ],
)
def test_sizes_that_a_mesh_cannot_cut_are_config_errors(
    changes: dict[str, Any], data: int, tensor: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_layout(
            replace(SIZES, **changes), decoder_model(MODEL, VOCAB), make_mesh(data, tensor)
        )


def test_a_mesh_is_cut_into_as_many_shards_as_its_data_axis_has_devices() -> None:
    assert make_layout(SIZES, decoder_model(MODEL, VOCAB), None).shards == 1
    assert make_layout(SIZES, decoder_model(MODEL, VOCAB), make_mesh(1, 2)).shards == 1
    enough = replace(SIZES, pages=2 * SIZES.fewest_pages)
    assert make_layout(enough, decoder_model(MODEL, VOCAB), make_mesh(2, 2)).shards == 2


@pytest.mark.parametrize(
    ("changes", "heads", "fits"),
    [
        ({"rows": 4}, 4, False),
        ({"rows": 8}, 4, True),
        ({"rows": 8}, 2, False),
        ({"rows": 3}, 3, True),  # few scores in every window
        ({"rows": 4, "context_tokens": 128}, 4, True),  # one window
        ({"rows": 8, "prefill_lanes": 1, "prefill_tokens": 4}, 4, False),
    ],
)
def test_windows_that_would_sum_in_another_order_are_refused(
    changes: dict[str, int], heads: int, fits: bool
) -> None:
    config = SamplerConfig(**{"context_tokens": 256, "prefill_lanes": 8} | changes)
    model = decoder_model(ModelConfig(num_heads=heads, num_kv_heads=1), VOCAB)
    if fits:
        check_bits(config, model)
        return
    with pytest.raises(ConfigError, match="where a context of 256 has several windows"):
        check_bits(config, model)


@pytest.mark.parametrize(
    ("rows", "shards", "instead"),
    [(5, 1, None), (8, 1, None), (13, 1, 16), (24, 1, None), (24, 2, 32), (16, 2, None)],
)
def test_rows_beyond_whole_vectors_are_refused(
    rows: int, shards: int, instead: int | None
) -> None:
    config = SamplerConfig(rows=rows, prefill_lanes=8)
    model = decoder_model(MODEL, VOCAB)
    if instead is None:
        check_bits(config, model, shards=shards)
        return
    message = rf"at most {8 * shards} or a multiple of that, got {rows}; such as {instead}"
    with pytest.raises(ConfigError, match=message):
        check_bits(config, model, shards=shards)
