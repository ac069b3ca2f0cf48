"""Parameters → tensors → parameters is exact (law 15)."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.weights.convert import params_from_tensors, tensors_from_params
from tests.fakes.weights import VOCAB, assert_same, counted, entries


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_law_15_there_and_back_is_exact(qk_norm: bool, tied: bool) -> None:
    config = ModelConfig(
        num_layers=3, width=6, num_heads=4, num_kv_heads=2, head_width=2, ffn_width=5
    )
    config = replace(config, qk_norm=qk_norm, tied_embeddings=tied)
    params = counted(config)
    tensors = tensors_from_params(params, entries(config))
    assert tensors["model.layers.2.self_attn.q_proj.weight"].shape == (8, 6)
    assert tensors["model.layers.0.mlp.down_proj.weight"].shape == (6, 5)
    assert ("lm_head.weight" in tensors) is not tied
    back = params_from_tensors(tensors, entries(config), config, VOCAB)
    assert_same(back, params)


def test_the_rows_of_a_projection_go_head_by_head() -> None:
    config = ModelConfig(num_layers=1, width=4, num_heads=2, num_kv_heads=2, head_width=2)
    params = counted(config)
    tensors = tensors_from_params(params, entries(config))
    query, output = params["layers"]["query"][0], params["layers"]["output"][0]
    row = tensors["model.layers.0.self_attn.q_proj.weight"][1 * 2 + 1]
    np.testing.assert_array_equal(row, query[:, 1, 1])
    column = tensors["model.layers.0.self_attn.o_proj.weight"][:, 1 * 2 + 0]
    np.testing.assert_array_equal(column, output[1, 0])
