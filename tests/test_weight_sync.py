"""Publishing: the sampler gets a copy, under a version that is acknowledged."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trio

from headrace.pipeline.device_thread import DeviceThread
from headrace.pipeline.learner.state import with_frozen
from headrace.pipeline.models.adapted import adapted_model
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.lora import LoraConfig
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.models.parameters import init, unstack
from headrace.pipeline.policy import Policy
from headrace.pipeline.policy.start import starting_params
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.programs import weight_places
from headrace.pipeline.weight_sync import compile_convert, compile_lora_convert, publish
from headrace.sharding import reshard
from headrace.sharding.mesh import Topology
from tests.learner.toy import quick_jit

MODEL = ModelConfig(num_layers=2, width=8, num_heads=2, num_kv_heads=1, head_width=4, ffn_width=8)


class Recorder:
    """Notes what is published; acknowledges after `seconds`."""

    def __init__(self):
        self.published = []

    async def publish(self, params, version):
        await trio.lowlevel.checkpoint()
        self.published.append((version, params))


def test_conformance_10_what_is_published_is_what_the_learner_has_and_survives_donation():
    params = init(MODEL, 11, jax.random.key(0))
    expected = jax.tree.map(np.asarray, unstack(params))
    convert = compile_convert(unstack, params)
    sampler = Recorder()

    async def main():
        device = DeviceThread("test")
        async with trio.open_nursery() as nursery:
            await nursery.start(device.serve)
            await publish(lambda: params, sampler, 3, convert=convert, device=device)
            nursery.cancel_scope.cancel()

    trio.run(main)
    for leaf in jax.tree.leaves(params):
        leaf.delete()  # as the next update's donation does
    ((version, published),) = sampler.published
    assert version == 3
    jax.tree.map(np.testing.assert_array_equal, published, expected)
    assert published["layers"][1]["gate"].dtype == jnp.float32


CUT = ModelConfig(num_layers=1, width=8, num_heads=2, num_kv_heads=2, head_width=4, ffn_width=8)
DECODER = decoder_model(CUT, 12)
FOUR, OTHERS = tuple(jax.devices()[:4]), tuple(jax.devices()[4:])


@pytest.mark.parametrize(
    ("weights", "lora", "sampler", "tensor", "strategy"),
    [
        ("bfloat16", LoraConfig(), FOUR, 1, "same_devices"),
        ("int8", LoraConfig(), OTHERS, 2, "staged"),
        ("float32", LoraConfig(rank=2, base="int8"), OTHERS[:3], 1, "staged"),
        ("int8", LoraConfig(rank=2, publish="adapters"), OTHERS, 2, "host"),
        ("float32", LoraConfig(rank=2, base="nf4", publish="adapters"), OTHERS, 2, "staged"),
    ],
)
def test_what_is_published_to_a_mesh_is_what_one_device_publishes(
    monkeypatch, weights, lora, sampler, tensor, strategy
):
    monkeypatch.setattr(reshard, "choose_strategy", lambda source, places: strategy)
    topology = Topology(FOUR, sampler, 2, tensor)
    start = partial(starting_params, Policy(CUT, 12, {}), DECODER, lora, seed=0)
    meshes = topology.learner_mesh, Topology.local(1).learner_mesh
    on_mesh, on_one = (start(mesh=mesh) for mesh in meshes)
    model = adapted_model(DECODER, lora) if lora.on else DECODER
    config = SamplerConfig(rows=12, prefill_lanes=12, weights=weights)
    places = weight_places(config, model, topology.sampler_mesh)
    if lora.on:
        settings = {"lora": lora, "model": DECODER, "weights": weights}
        convert = compile_lora_convert(*on_mesh, **settings, places=places)
    else:
        to_stored = partial(DECODER.sampler_params, weights=weights)
        convert = compile_convert(to_stored, on_mesh.trained, places=places)
    published = convert(on_mesh.trained)
    expected = quick_jit(model.sampler_params, static_argnames="weights")(
        with_frozen(*on_one), weights=weights
    )
    chex.assert_trees_all_equal(*jax.device_get((published, expected)))
    assert jax.tree.map(lambda leaf: leaf.sharding, published) == places
