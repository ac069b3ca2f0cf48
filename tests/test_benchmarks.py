"""The sampler's benchmark measures what it says, and its command runs on a tiny model."""

import dataclasses
import functools
import importlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import trio

from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampling import PLAIN
from headrace.pipeline.types import Completion, FinishReason, SampleRequest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def the_scripts_folder_is_searched(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)


def load(name: str):
    return importlib.import_module(name)


def run_command(*arguments: str, script: str = "sampler.py") -> dict:
    """Run the command as its reader would, and return what it writes."""
    root = FOLDER.parent
    run = subprocess.run(
        [sys.executable, str(FOLDER / script), *arguments],
        cwd=root,
        env={"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return json.loads(run.stdout)


@pytest.mark.slow
def test_the_command_reports_every_case_and_its_peer(tmp_path):
    peer = tmp_path / "peer.py"
    result = {"results": {"smoke/b2": {"call_cpu_s_min": 64.0}}}
    peer.write_text(f"print('talk')\nprint('RESULT ' + {json.dumps(result)!r})\n")
    file = tmp_path / "report.json"
    report = run_command(
        *("--models", "smoke", "--rows", "2", "--rounds", "1"),
        *("--waves", "0", "--requests", "0", "--host-rows", "0"),
        *("--peer", f"{sys.executable} {peer}", "--json", str(file)),
    )
    assert json.loads(file.read_text()) == report
    case = report["smoke/2"]
    assert case["config"]["rows"] == 2
    for name in ("tokens_per_second", "tokens_per_cpu_second", "roofline_share"):
        assert np.isfinite(case[name]), name
    assert "host" not in report
    assert report["compilations_after_warmup"] == 0
    # The peer takes 64 CPU-seconds for 2 x 64 tokens: 2 tokens a CPU-second.
    assert report["times_peers"] == {"smoke/2": pytest.approx(case["tokens_per_cpu_second"] / 2)}
    (reported,) = report["peers"]
    assert reported["results"] == result["results"]


@pytest.mark.slow
def test_the_hosts_time_is_measured_while_all_rows_decode(monkeypatch):
    host, workload = load("sampler_host"), load("workload")
    monkeypatch.setattr(host, "DISPATCHES", 2)
    config = host.fit(SamplerConfig(prefill_lanes=4, page_tokens=8), 4)  # one window
    build = load("serving").build(workload.MODELS["smoke"], workload.VOCAB_SIZE, config)
    report = host.measure_host(build)
    assert report["host_microseconds_per_dispatch"] > 0
    assert report["call_microseconds_per_dispatch"] > 0
    assert report["compilations"] == 0


@pytest.mark.slow
def test_the_learners_command_reports_costs_memory_and_its_peer(tmp_path):
    peer = tmp_path / "peer.py"
    result = {"results": {"smoke": {"step_cpu_s_min": 640.0}}}
    peer.write_text(f"print('RESULT ' + {json.dumps(result)!r})\n")
    report = run_command(
        *("--models", "smoke", "--rows", "4", "--row-tokens", "16", "--microbatch-rows", "2"),
        *("--rounds", "1", "--peer", f"{sys.executable} {peer}"),
        script="learner.py",
    )
    case = report["smoke"]
    assert case["tokens_per_cpu_second"] == pytest.approx(64 / case["step_cpu_seconds"])
    # Parameters, two moments of each, and some counters.
    assert case["state_mib"] * 2**20 == pytest.approx(3 * 4 * case["parameters"], abs=100)
    assert case["temporary_mib"] > 4 * case["parameters"] / 2**20  # at least the gradient
    assert report["times_peers"] == {"smoke": pytest.approx(640 / case["step_cpu_seconds"])}
    share = case["products_cpu_seconds"] / case["step_cpu_seconds"]
    assert case["products_share"] == pytest.approx(share)


def test_a_steps_products_are_three_of_each_matrix_and_causal_scores_in_blocks():
    model, rows, length = load("workload").MODELS["m4"], 2, 256
    products = load("roofline").products_of_step(model, 512, rows=rows, row_tokens=length)
    parameters = 5 * (256 * 256 * 3 + 3 * 256 * 768) + 512 * 256  # k and v have half the heads
    of_matrices = 6 * rows * length * parameters + 2 * rows * length * 256 * 512
    blocks = sum(64 * end for end in (64, 128, 192, 256))  # scores of a head
    of_scores = 5 * rows * 4 * 2 * 3 * 2 * 64 * blocks  # and the mixing of values, as many
    assert sum(product.flops for product in products) == of_matrices + of_scores


def test_the_learners_batch_is_a_quarter_prompt():
    learner = load("learner")
    batch = learner.draw_batch(learner.parse(["--rows", "4", "--microbatch-rows", "2"]))
    assert batch.tokens.shape == (2, 2, 256)
    assert batch.loss_mask.mean() == 0.75
    assert not batch.loss_mask[..., :64].any()
    assert (np.ptp(batch.advantages[..., 64:], axis=-1) == 0).all()


@pytest.mark.parity
def test_transformers_samples_the_workload():
    driver = load("transformers_sampler")
    logprobs = driver.generate(driver.make_model(load("workload").MODELS["smoke"]), 2, 0)
    assert logprobs.shape == (2, 64)
    assert ((logprobs > -20) & (logprobs < 0)).all()


def test_a_peer_without_a_result_is_an_error_that_says_what_it_wrote():
    peers = load("peers")
    with pytest.raises(peers.PeerFailedError, match="nothing here"):
        peers.run_peer(f"{sys.executable} -c \"print('nothing here')\"")


def test_the_last_result_of_a_peer_counts():
    find_result = load("peers").find_result
    assert find_result('RESULT {"a": 1}\nRESULTS\nRESULT {"a": 2}\n') == {"a": 2}
    assert find_result("no RESULT {}") is None


def test_only_what_the_peers_measured_too_is_compared_and_their_best_counts():
    peers = [{"results": {"m4/b8": {"call_cpu_s_min": seconds}}} for seconds in (3.0, 2.0)]
    times = load("peers").times_peers({"m4/8": 8.0, "m4/1": 1.0}, [*peers, {}], new_tokens=2)
    assert times == {"m4/8": 8.0 / (8 * 2 / 2.0)}


def test_trajectories_are_compared_with_the_peers_that_measured_them():
    times = load("peers").times_peers_trajectory
    assert times(0.5, [{}, {"gen_cpu_s_per_traj": 4.0}, {"gen_cpu_s_per_traj": 3.0}]) == {
        "agentic_small": 6.0
    }
    assert times(0.5, [{}]) == {}


@pytest.mark.parametrize(
    ("name", "parameters"), [("smoke", 25e3), ("m05", 460e3), ("m4", 4.07e6), ("m30", 31.7e6)]
)
def test_models_have_the_sizes_that_the_workload_names(name: str, parameters: float):
    jax = importlib.import_module("jax")
    shapes = load("headrace.pipeline.models.parameters")
    work = load("workload")
    declared = jax.tree.leaves(shapes.declare(work.MODELS[name], work.VOCAB_SIZE))
    assert sum(np.prod(weight.shape) for weight in declared) == pytest.approx(parameters, rel=0.1)


@pytest.mark.parametrize("name", ["smoke", "m05"])
def test_the_roofline_has_all_matrices_of_the_model(name: str):
    jax = importlib.import_module("jax")
    work, shapes = load("workload"), load("headrace.pipeline.models.parameters")
    model = work.MODELS[name]
    matrices = jax.eval_shape(lambda: load("roofline").make_matrices(model, work.VOCAB_SIZE))
    declared = jax.tree.leaves(shapes.declare(model, work.VOCAB_SIZE))
    norms = model.num_layers * (2 * model.width + 2 * model.head_width) + model.width
    elements = sum(np.prod(weight.shape) for weight in declared)
    assert sum(matrix.size for matrix in jax.tree.leaves(matrices)) == elements - norms


@pytest.mark.parametrize("order", ["RIGHT", "LEFT"])
def test_every_product_of_the_roofline_counts(order: str):
    jax = importlib.import_module("jax")
    work, roofline = load("workload"), load("roofline")
    # Fewer inputs than the width, so that no two axes are equal.
    model = dataclasses.replace(work.SMOKE, head_width=8)
    x = np.random.default_rng(1).normal(size=(3, model.width)).astype(np.float32)
    operands = right = (x, *roofline.make_matrices(model, work.VOCAB_SIZE))
    run = functools.partial(roofline.multiply, steps=2)
    by_rows = jax.jit(functools.partial(run, order=roofline.RIGHT))(*right)
    if order == "LEFT":
        operands = roofline.turned(right)
    multiply = jax.jit(functools.partial(run, order=getattr(roofline, order)))
    whole = multiply(*operands)
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(whole.T if order == "LEFT" else whole, by_rows, rtol=1e-4)
    leaves, structure = jax.tree.flatten(operands)
    for index in range(1, len(leaves)):
        without = [*leaves[:index], np.zeros_like(leaves[index]), *leaves[index + 1 :]]
        other = multiply(*jax.tree.unflatten(structure, without))
        assert not np.allclose(other, whole, rtol=1e-6, atol=0), index


def test_short_work_is_repeated_until_its_cpu_time_can_be_told():
    costs, calls = load("costs"), []
    cost = costs.measure_short(lambda: calls.append(None))
    assert cost.wall * len(calls) >= costs.LEAST_SECONDS
    assert cost.cpu >= 0


def test_latencies_are_drawn_by_place_and_average_a_quarter_of_a_second():
    latency = load("workload").latency_seconds
    drawn = [latency(index, 3, turn) for index in range(500) for turn in range(4)]
    assert latency(7, 3, 1) == drawn[7 * 4 + 1]
    assert latency(7, 3, 1) != latency(7, 2, 1)
    assert np.mean(drawn) == pytest.approx(0.254, rel=0.1)
    assert np.mean(np.array(drawn) == 2.0) == pytest.approx(0.03, abs=0.015)


def test_a_plain_round_shares_no_prompt_with_another():
    work = load("workload").Plain()
    make = load("sampler_plain").make_requests
    asked = [request for index in range(4) for request in make(work, 5, index, 64)]
    assert {len(request.tokens) for request in asked} == {work.prompt_tokens}
    assert len({request.tokens.tobytes() for request in asked}) == len(asked)
    assert len({request.key for request in asked}) == len(asked)


def test_an_episode_reads_as_many_tokens_as_the_workload_counts():
    agentic, work = load("sampler_agentic"), load("workload").Agentic()
    asked: list[SampleRequest] = []

    async def sample(request: SampleRequest) -> Completion:
        await trio.lowlevel.checkpoint()
        asked.append(request)
        ones = np.ones(request.max_tokens, np.int32)
        return Completion(ones, ones.astype(np.float32), ones, FinishReason.LENGTH)

    episode = agentic.Episode(work, prompt_index=1, member=2, latency=0.0)
    trio.run(agentic.run_episode, sample, episode)
    lengths = [len(request.tokens) for request in asked]
    assert lengths == [64, 105, 146, 187]
    assert work.episodes * sum(lengths) == work.read_tokens
    assert lengths[-1] + work.turn_tokens == work.longest
    assert work.conversation_tokens == 4 * 64 + 32 * 3 * 25
    for before, after in itertools.pairwise(asked):
        assert (after.tokens[: len(before.tokens)] == before.tokens).all()
    assert len({request.key for request in asked}) == 1


def test_host_time_is_what_the_thread_computes_between_wrapped_calls(monkeypatch):
    host_time = load("host_time")
    now = iter([0.0, 1.0, 5.0, 7.0])  # entered, left, entered again, left
    monkeypatch.setattr(host_time.time, "thread_time", lambda: next(now))
    clock = host_time.HostClock()
    double = clock.wrap(lambda x: 2 * x)
    assert [double(2), double(3)] == [4, 6]
    assert (clock.seconds, clock.call_seconds) == (4.0, 3.0)


def test_random_requests_are_ones_that_the_sampler_takes():
    module, work = load("sampler_random"), load("workload")
    config = module.fit(load("headrace.pipeline.sampler.config").SamplerConfig(rows=64))
    rng = np.random.default_rng(0)
    asked = [module.random_request(rng, config, index) for index in range(200)]
    lengths = {len(request.tokens) for request in asked}
    assert min(lengths) >= 1
    assert max(lengths) < config.context_tokens
    assert all(request.max_tokens >= 1 for request in asked)
    assert {len(request.stop_ids) for request in asked} == set(range(config.max_stop_ids + 1))
    assert all((request.tokens < work.VOCAB_SIZE).all() for request in asked)
    assert all(request.sampling.largest_id < work.VOCAB_SIZE for request in asked)
    assert {request.sampling == PLAIN for request in asked} == {True, False}
