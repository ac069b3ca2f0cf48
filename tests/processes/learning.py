"""What a run does on the learner's side, from its first parameters to the saved policy."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax
import pytest
import trio
from jax.sharding import NamedSharding, PartitionSpec

from headrace import ConfigError
from headrace.pipeline.algorithms.losses import AlgorithmConfig, policy_loss, sft_loss
from headrace.pipeline.algorithms.presets import PRESETS
from headrace.pipeline.device_thread import DeviceThread
from headrace.pipeline.learner.credit import assign_credit
from headrace.pipeline.learner.critic import CriticRule
from headrace.pipeline.learner.distillation import Teacher
from headrace.pipeline.learner.fingerprint import fingerprint
from headrace.pipeline.learner.optimizer import LearnerConfig, make_optimizer
from headrace.pipeline.learner.placement import RolloutMeshConfig
from headrace.pipeline.learner.service import Learner, UpdateRule
from headrace.pipeline.models.adapted import adapted_model
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.lora import LoraConfig
from headrace.pipeline.models.model import Model, decoder_model
from headrace.pipeline.policy.load import load_policy
from headrace.pipeline.policy.record import Policy
from headrace.pipeline.policy.save import save_policy
from headrace.pipeline.policy.start import (
    Finish,
    Start,
    compile_final,
    load_start,
    starting_params,
)
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.programs import weight_places
from headrace.pipeline.text.renderer import TextConfig
from headrace.pipeline.types import TrainBatch
from headrace.pipeline.weight_sync import Convert, compile_convert, compile_lora_convert
from headrace.sharding.mesh import FSDP, Topology
from headrace.sharding.partition import on_host, shard
from tests.learner.toy import toy_batch, toy_forward, toy_items, toy_params

MODEL = ModelConfig(num_layers=1, width=8, num_heads=2, num_kv_heads=2, head_width=4, ffn_width=8)
TEXT = TextConfig("0123456789+")
SHAPE = (4, 8, 12)  # A, R, T
SAMPLER = SamplerConfig(rows=8, prefill_lanes=8)
DEVICES = 4
UPDATES = 2
REFUSED = {
    RolloutMeshConfig(2, 1): "mesh.fsdp times mesh.tensor must be 4, all devices of the 2 "
    "processes, got 2; set both",
    RolloutMeshConfig(4, 2): "must be 4, all devices of the 2 processes, got 8",
    RolloutMeshConfig(2, 1, sampler_devices=2): "mesh.sampler_devices must be 0 in a run of 2 "
    "processes, got 2",
}  # where there are two processes


@dataclass(frozen=True)
class Case:
    """One way to learn.

    Attributes:
      policy: a saved one to begin with; None draws the parameters.
      teacher: another one.
    """

    algorithm: AlgorithmConfig = PRESETS["grpo"]
    lora: LoraConfig = field(default_factory=LoraConfig)
    policy: Path | None = None
    teacher: Path | None = None


class Begun(NamedTuple):
    """Hashes of the first parameters: the learner's, and what the sampler gets."""

    start: str
    published: str


class Learnt(NamedTuple):
    """What some updates gave: hashes are of what is trained, isn't, and is published."""

    params: Any
    metrics: list[dict[str, float]]
    trained: str
    fixed: str
    published: str


class Beginning(NamedTuple):
    """The first parameters, and what is made of them and those that follow."""

    topology: Topology
    model: Model
    start: Start
    convert: Convert
    finish: Finish

    def saved(self, folder: Path) -> Begun:
        """Publish the first parameters, and save them in `folder`."""
        _save(self.finish(self.start.trained), folder)
        return Begun(fingerprint(self.start), fingerprint(self.convert(self.start.trained)))


def begin(case: Case, tensor: int) -> Beginning:
    """Make the first parameters on four devices."""
    topology = topology_of(tensor)
    policy, model, start = started(case, topology)
    convert = _convert(case, start, topology, model)
    return Beginning(topology, model, start, convert, compile_final(policy, start, case.lora))


def learn(case: Case, tensor: int, folder: Path) -> tuple[Begun, Learnt]:
    """Begin, take some updates, and save what was learnt beside `folder`."""
    begun = begin(case, tensor)
    learner, metrics = _updated(partial(_learner, case, begun))
    _save(begun.finish(learner.params), folder.with_name(f"{folder.name} learnt"))
    return begun.saved(folder), _seen(learner, metrics, begun.convert)


def begin_and_learn_little(case: Case, tensor: int, folder: Path) -> tuple[Begun, Learnt]:
    """Begin, and take some updates of another model, which is compiled quickly."""
    of_all = f"4 x cpu of {jax.process_count()} processes"
    assert topology_of(tensor).describe().endswith(of_all)
    for mesh, message in REFUSED.items():
        with pytest.raises(ConfigError, match=message):
            mesh.topology()
    return begin(case, tensor).saved(folder), learn_little(tensor)


def learn_little(tensor: int) -> Learnt:
    """Take some updates of a model that is compiled quickly."""
    rule = UpdateRule(
        forward=toy_forward,
        loss=sft_loss,
        optimizer=optax.sgd(0.1),
        batch_shape=SHAPE,
        temperature=0.7,
        old_logprobs="rollout",
    )
    cut = NamedSharding(topology_of(tensor).learner_mesh, PartitionSpec(None, FSDP))

    def make(device: DeviceThread) -> Learner:
        return Learner(shard(toy_params(), cut), rule, device)

    return _seen(*_updated(make), convert=lambda params: params)


def topology_of(tensor: int) -> Topology:
    """Give the four devices of all processes, or the first four of the only one."""
    return RolloutMeshConfig(DEVICES // tensor, tensor).topology()


def started(case: Case, topology: Topology) -> tuple[Policy, Model, Start]:
    """Load or draw the parameters."""
    path = None if case.policy is None else str(case.policy)
    policy = load_start(path, MODEL, TEXT, topology)
    parts = topology.learner_tensor
    decoder = decoder_model(MODEL, policy.vocab_size, vocab_parts=parts)
    model = adapted_model(decoder, case.lora) if case.lora.on else decoder
    mesh = topology.learner_mesh
    return policy, model, starting_params(policy, decoder, case.lora, seed=1, mesh=mesh)


def _updated(
    make: Callable[[DeviceThread], Learner],
) -> tuple[Learner, list[dict[str, float]]]:
    """Make a learner and update it, while its thread serves."""

    async def main() -> tuple[Learner, list[dict[str, float]]]:
        device = DeviceThread("learner")
        async with trio.open_nursery() as nursery:
            await nursery.start(device.serve)
            learner = await device.run(partial(make, device))
            await learner.compile()
            await learner.update(_batch(UPDATES))
            await learner.adopt(learner.params)  # as after a warm start
            metrics = [await learner.update(_batch(seed)) for seed in range(UPDATES)]
            nursery.cancel_scope.cancel()
        return learner, metrics

    return trio.run(main)


def _seen(learner: Learner, metrics: list[dict[str, float]], convert: Convert) -> Learnt:
    return Learnt(
        params=on_host(learner.params),
        metrics=metrics,
        trained=fingerprint(learner.params),
        fixed=learner.fixed_sha256(),
        published=fingerprint(convert(learner.params)),
    )


def _batch(seed: int) -> TrainBatch:
    microbatches, rows, row_tokens = SHAPE
    items = toy_items(seed=seed)
    return toy_batch(items, microbatches=microbatches, rows=rows, row_tokens=row_tokens)


def _save(policy: Policy, folder: Path) -> None:
    save_policy(policy, folder, writes=jax.process_index() == 0)


def _learner(case: Case, begun: Beginning, device: DeviceThread) -> Learner:
    topology, model, start, *_ = begun
    algorithm, vocab = case.algorithm, model.vocab_size
    base = decoder_model(MODEL, vocab, vocab_parts=topology.learner_tensor).forward
    # Adam as it is usually set makes a step of full size of the rounding of a gradient near 0.
    optimizer = make_optimizer(LearnerConfig(learning_rate=0.01, adam_epsilon=1e-2))
    rule = UpdateRule(
        forward=model.forward,
        loss=partial(policy_loss, config=algorithm),
        optimizer=optimizer,
        batch_shape=SHAPE,
        keep_reference=algorithm.kl.coefficient > 0,
        base_forward=base if algorithm.kl.reference == "base" else None,
        reference_decay=algorithm.kl.reference_decay,
        credit=partial(assign_credit, config=algorithm) if algorithm.credits_tokens else None,
        critic=CriticRule(optimizer) if algorithm.has_critic else None,
    )
    teacher = None
    if case.teacher is not None:
        teacher = Teacher(base, load_policy(case.teacher, topology).params)
    return Learner(start.trained, rule, device, start.frozen, teacher=teacher)


def _convert(case: Case, start: Start, topology: Topology, model: Model) -> Convert:
    places = weight_places(SAMPLER, model, topology.sampler_mesh)
    if start.frozen is None:
        to_stored = partial(model.sampler_params, weights=SAMPLER.weights)
        return compile_convert(to_stored, start.trained, places=places)
    parts = topology.learner_tensor
    decoder = decoder_model(MODEL, model.vocab_size, vocab_parts=parts)
    settings = {"lora": case.lora, "model": decoder, "weights": SAMPLER.weights}
    return compile_lora_convert(*start, **settings, places=places)
