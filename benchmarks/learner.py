"""What one optimizer step costs: CPU-seconds and memory.

  python benchmarks/learner.py --models m4,m30 --json FILE

A step is `train_step` with GRPO's loss and AdamW on `--rows` rows of `--row-tokens` tokens, a
quarter of each a prompt, the rest sampled; gradients, clipping and the optimizer included, and
`old_logprobs` given, as other libraries' steps have it. In the report, for each model:

- `step_cpu_seconds`, `step_seconds`: of the quickest of all rounds; `tokens_per_cpu_second`.
- `score_cpu_seconds`: of the forward pass that computes `old_logprobs`, where one asks for it.
- `products_cpu_seconds`: of the step's matrix products alone, measured in the same process, and
  `products_share`, that of the step; `gigaflops`, theirs.
- `temporary_mib`: what the compiled step needs beside its state and its batch
  (`memory_analysis`), `state_mib`: parameters and optimizer state.
- `peak_rss_mib`: the largest memory of the process so far, measured after this model's rounds
  of the first pass: name the smaller models first.

To compare with another library, give the command of its driver; it may be in an environment of
its own. Ours and the peers run in turn, in `--passes` passes:

  python benchmarks/learner.py --models m4 --passes 2 \\
      --peer "path/to/python driver.py --what trainstep --model m4"

It must print a line `RESULT {json}`, which is put under `peers`. If it has `results` with
`{"m4": {"step_cpu_s_min": SECONDS}}`, of a step on as many tokens, `times_peers` says how many of
our steps cost what the quickest of theirs does.
"""

import argparse
import json
import platform
import resource
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np

from costs import Cost, measure, quickest
from headrace.pipeline.algorithms.losses import policy_loss
from headrace.pipeline.algorithms.presets import PRESETS
from headrace.pipeline.learner import Anchors, batch_logprobs, init_state, train_step
from headrace.pipeline.learner.optimizer import LearnerConfig, make_optimizer
from headrace.pipeline.learner.precision import ComputeType, computed_in
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.models.remat import Remat
from headrace.pipeline.types import TrainBatch
from peers import run_peer
from roofline import cost_of_product, products_of_step
from workload import MODELS, SEED, VOCAB_SIZE

Report = dict[str, Any]
MIB = 2**20


@dataclass
class Case:
    """A model's compiled step, and its state, which each step replaces."""

    step: Any
    score: Any
    state: Any
    batch: TrainBatch

    def take_step(self) -> None:
        self.state, _ = jax.block_until_ready(self.step(self.state, self.batch))

    def score_batch(self) -> None:
        jax.block_until_ready(self.score(self.state.params, self.batch))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What one optimizer step costs.")
    parser.add_argument("--models", type=lambda text: text.split(","), default=["m4", "m30"])
    parser.add_argument("--rows", type=int, default=32, help="of the batch")
    parser.add_argument("--row-tokens", type=int, default=256)
    parser.add_argument("--microbatch-rows", type=int, default=4)
    parser.add_argument("--remat", choices=get_args(Remat), default="none")
    parser.add_argument("--compute-type", choices=get_args(ComputeType), default="float32")
    parser.add_argument("--rounds", type=int, default=4, help="of each model and pass")
    parser.add_argument("--passes", type=int, default=1, help="over all models and peers")
    parser.add_argument("--peer", action="append", default=[], help="command of a peer's driver")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    steps: dict[str, list[Cost]] = {model: [] for model in options.models}
    scores: dict[str, list[Cost]] = {model: [] for model in options.models}
    report: Report = {}
    peers = []
    for index in range(options.passes):
        # First, while this process is small: the peak memory of one that it starts begins there.
        for command in options.peer:
            progress(f"pass {index}: {command}")
            peers.append(run_peer(command) | {"pass": index})
        for model in options.models:
            case, sizes = build(model, options)
            case.take_step()
            case.score_batch()
            steps[model] += [measure(case.take_step) for _ in range(options.rounds)]
            scores[model] += [measure(case.score_batch) for _ in range(options.rounds)]
            if index == 0:
                sizes |= products(model, options)
            report.setdefault(model, sizes | {"peak_rss_mib": peak_rss_mib()})
            progress(f"pass {index}: {model}: {quickest(steps[model]).cpu:.2f} CPU-s a step")
    for model in options.models:
        report[model] |= costs_of(quickest(steps[model]), quickest(scores[model]), options)
        share = report[model]["products_cpu_seconds"] / report[model]["step_cpu_seconds"]
        report[model]["products_share"] = share
    if peers:
        report |= {"peers": peers, "times_peers": times_peers(report, peers)}
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    report["settings"] = settings
    report["versions"] = {"python": platform.python_version(), "jax": jax.__version__}
    print(json.dumps(report, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def build(model: str, options: argparse.Namespace) -> tuple[Case, Report]:
    """Compile a model's step; also give what the compiler says of its memory."""
    policy = decoder_model(MODELS[model], VOCAB_SIZE, remat=options.remat)
    forward = computed_in(policy.forward, options.compute_type)
    optimizer = make_optimizer(LearnerConfig(learning_rate=3e-4))
    batch = jax.device_put(draw_batch(options))
    state = init_state(policy.init(jax.random.key(0)), optimizer)
    loss = partial(policy_loss, config=PRESETS["grpo"])

    def step(state: Any, batch: TrainBatch) -> Any:
        anchors = Anchors(batch.rollout_logprobs, batch.rollout_logprobs)
        return train_step(state, batch, anchors, forward=forward, loss=loss, optimizer=optimizer)

    compiled = jax.jit(step, donate_argnums=0).lower(state, batch).compile()
    score = jax.jit(partial(batch_logprobs, forward=forward)).lower(state.params, batch).compile()
    memory = compiled.memory_analysis()
    sizes = {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "state_mib": sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / MIB,
        "temporary_mib": memory.temp_size_in_bytes / MIB,
    }
    return Case(compiled, score, state, batch), sizes


def draw_batch(options: argparse.Namespace) -> TrainBatch:
    """Draw rows of one sequence each, a quarter of it a prompt, with an advantage for each."""
    rng = np.random.default_rng(SEED)
    each = min(options.microbatch_rows, options.rows)
    shape = (options.rows // each, each, options.row_tokens)
    places = np.broadcast_to(np.arange(options.row_tokens, dtype=np.int32), shape)
    advantages = rng.normal(size=(*shape[:2], 1)).astype(np.float32)
    sampled = places >= options.row_tokens // 4
    return TrainBatch(
        tokens=rng.integers(0, VOCAB_SIZE, shape).astype(np.int32),
        segment_ids=np.ones(shape, np.int32),
        positions=places,
        loss_mask=sampled,
        rollout_logprobs=np.where(sampled, np.float32(-np.log(VOCAB_SIZE)), np.float32(0)),
        log_kept_mass=np.zeros(shape, np.float32),
        lags=np.zeros(shape, np.int32),
        advantages=np.where(sampled, advantages, np.float32(0)),
        microbatches=np.array(shape[0], np.int32),
    )


def products(model: str, options: argparse.Namespace) -> Report:
    """Measure the step's matrix products by themselves."""
    each = min(options.microbatch_rows, options.rows)
    shape = {"rows": each, "row_tokens": options.row_tokens}
    found = products_of_step(MODELS[model], VOCAB_SIZE, **shape)
    seconds = sum(cost_of_product(product, rounds=options.rounds) for product in found)
    microbatches = options.rows // each
    flops = microbatches * sum(product.flops for product in found)
    return {"products_cpu_seconds": microbatches * seconds, "gigaflops": flops / 1e9}


def costs_of(step: Cost, score: Cost, options: argparse.Namespace) -> Report:
    """Turn the quickest rounds into the numbers of the report."""
    return {
        "step_cpu_seconds": step.cpu,
        "step_seconds": step.wall,
        "tokens_per_cpu_second": options.rows * options.row_tokens / step.cpu,
        "score_cpu_seconds": score.cpu,
    }


def times_peers(report: Report, peers: list[Report]) -> dict[str, float]:
    """Divide the CPU time of the peers' quickest step by ours, model by model."""
    ratios = {}
    for model, numbers in report.items():
        costs = [
            peer["results"][model]["step_cpu_s_min"]
            for peer in peers
            if model in peer.get("results", {})
        ]
        if costs:
            ratios[model] = min(costs) / numbers["step_cpu_seconds"]
    return ratios


def peak_rss_mib() -> float:
    """Tell the largest resident memory of this process so far; Linux counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def progress(text: str) -> None:
    """Say what is being done; the report alone goes to the standard output."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
