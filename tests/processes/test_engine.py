"""Engines over the devices of several processes: equal calls give what one process gives."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.models.traits import ExpertTraits, Traits
from headrace.pipeline.sampler.config import DrawLimits, SamplerConfig
from headrace.pipeline.sampler.engine import Engine, SamplerStatistics
from headrace.pipeline.sampler.programs import Programs, compile_programs
from headrace.pipeline.types import Completion, SampleRequest
from headrace.sharding.mesh import FSDP, TENSOR, make_mesh
from tests.learner.toy import QUICK, quick_jit
from tests.processes.launch import run_in_processes
from tests.sampler.draws import random_row
from tests.sampler.helpers import MODEL, VOCAB, make_request

MIXTURE = replace(MODEL, traits=Traits(experts=ExpertTraits(count=5, per_token=2)))
CONFIG = SamplerConfig(
    rows=8,
    context_tokens=32,
    decode_tokens=3,
    prefill_lanes=4,
    prefill_tokens=4,
    max_stop_ids=2,
    page_tokens=4,
    draws=DrawLimits(max_logit_bias=3, token_masks=True),
)
PAGES = 16  # of a shard; its rows at full length want more
GROUP, CONVERSATIONS, TURNS = 2, 24, 3
PUBLISHED_BEFORE = 8, 16  # these conversations


class Case(NamedTuple):
    """Which engine, and which random calls of it."""

    fsdp: int
    tensor: int
    model: ModelConfig = MODEL
    order: tuple[int, ...] = (0, 1, 2, 3)  # of the devices; the first process has 0 and 1
    seeds: tuple[int, ...] = (0,)
    quick: bool = False  # programs that compile quickly

    @property
    def config(self) -> SamplerConfig:
        draws = replace(CONFIG.draws, record_experts=self.model != MODEL)
        return replace(CONFIG, pages=PAGES * self.fsdp, draws=draws)


class Played(NamedTuple):
    """What came of one seed's calls."""

    completions: dict[int, Completion]
    statistics: SamplerStatistics
    brought_back: list[int]  # of each sequence that came back from the host, its shard


@dataclass
class Calls:
    """Calls of one engine: groups with one prompt, turns, cancels, publishes; all of a seed."""

    engine: Engine
    params: list[Any]  # by version
    rng: np.random.Generator
    newest: int = -1
    running: dict[int, SampleRequest] = field(default_factory=dict)
    completions: dict[int, Completion] = field(default_factory=dict)

    def play(self) -> None:
        self.publish()
        for conversation in range(CONVERSATIONS):
            if conversation in PUBLISHED_BEFORE:
                self.publish()
            self.submit(TURNS * conversation, self.opening(conversation))
            if self.rng.random() < 0.2:
                self.cancel()
            for _ in range(int(self.rng.integers(3))):
                self.step()
        while self.engine.has_work:
            self.step()
        for version in range(self.newest):
            self.engine.drop(version)

    def publish(self) -> None:
        self.newest += 1
        self.engine.publish(self.params[self.newest], self.newest)

    def opening(self, conversation: int) -> SampleRequest:
        """Ask for what random rows do, with the prompt of the group; every third is pinned."""
        row = random_row(self.rng, VOCAB)
        request = make_request(conversation, temperature=row.temperature, max_tokens=8)
        prompt = make_request(conversation - conversation % GROUP).tokens
        version = self.newest if conversation % 3 == 0 else None
        return replace(request, tokens=prompt, sampling=row.sampling, version=version)

    def submit(self, ticket: int, request: SampleRequest) -> None:
        self.running[ticket] = request
        self.engine.submit(ticket, request)

    def cancel(self) -> None:
        ticket = list(self.running)[int(self.rng.integers(len(self.running)))]
        del self.running[ticket]
        self.engine.cancel(ticket)

    def step(self) -> None:
        for ticket, answer in self.engine.step():
            assert isinstance(answer, Completion)
            self.completions[ticket] = answer
            text = np.concatenate([self.running[ticket].tokens, answer.tokens, [5]])
            longer = replace(self.running.pop(ticket), tokens=text.astype(np.int32))
            if (ticket + 1) % TURNS and len(text) < CONFIG.context_tokens:
                self.submit(ticket + 1, longer)


def play(case: Case) -> list[Played]:
    """Make the same calls, whichever process has the devices."""
    devices = [jax.devices()[index] for index in case.order]
    mesh = make_mesh(devices, {FSDP: case.fsdp, TENSOR: case.tensor})
    model = decoder_model(case.model, VOCAB)
    make = quick_jit(lambda key: model.sampler_params(model.init(key), CONFIG.weights))
    params = [make(jax.random.key(version)) for version in range(1 + len(PUBLISHED_BEFORE))]
    options = QUICK if case.quick else None
    programs = compile_programs(case.config, model, mesh=mesh, compiler_options=options)
    played = []
    for seed in case.seeds:
        watched, brought_back = watch(programs)
        calls = Calls(
            Engine(case.config, model, mesh=mesh, programs=watched),
            params,
            np.random.default_rng(seed),
        )
        calls.play()
        statistics = replace(calls.engine.statistics(), busy_seconds=0.0)
        played.append(Played(calls.completions, statistics, brought_back))
    return played


def watch(programs: Programs) -> tuple[Programs, list[int]]:
    """Note the shard of what is brought back from the host."""
    shards: list[int] = []

    def insert(state: Any, pages: Any, data: Any) -> Any:
        shards.append(int(np.flatnonzero(pages)[0]) * programs.shards // len(pages))
        return programs.insert(state, pages, data)

    return replace(programs, insert=insert), shards


def assert_equal(found: Played, expected: Played) -> None:
    """Bit for bit."""
    assert list(found.completions) == list(expected.completions)
    for ticket, one in found.completions.items():
        np.testing.assert_equal(asdict(one), asdict(expected.completions[ticket]))
    assert found.statistics == expected.statistics
    assert found.brought_back == expected.brought_back


def assert_alike(case: Case, folder: Path) -> None:
    """Every process gives what one process gives, and the calls do what they are for."""
    results = [play(case), *run_in_processes(play, case, folder=folder)]
    for expected, *others in zip(*results, strict=True):
        assert expected.brought_back
        assert expected.statistics.preemptions > 0 < expected.statistics.cancelled
        assert expected.statistics.pages_free == 1
        for found in others:
            assert_equal(found, expected)


def test_each_of_two_processes_samples_what_one_does(tmp_path: Path) -> None:
    assert_alike(Case(2, 2, replace(MIXTURE, num_layers=1), quick=True), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case(2, 2, seeds=(1, 2)),
        Case(4, 1, seeds=(1, 2)),
        Case(4, 1, MIXTURE, seeds=(1, 2)),
        Case(2, 2, MIXTURE, order=(0, 2, 1, 3), seeds=(1, 2)),  # each has half a part
    ],
)
def test_random_calls_give_the_same_in_one_process_and_in_two(case: Case, tmp_path: Path) -> None:
    assert_alike(case, tmp_path)
