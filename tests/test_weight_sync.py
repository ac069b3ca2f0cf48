"""Publishing: the sampler gets a copy, under a version that is acknowledged."""

import jax
import jax.numpy as jnp
import numpy as np
import trio

from headrace.pipeline.device_thread import DeviceThread
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.parameters import init, unstack
from headrace.pipeline.weight_sync import compile_convert, publish

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
