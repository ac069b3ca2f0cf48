"""The engine's promises with a real model: the laws that no fake device can break."""

import gc
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.observe.compilations import CompilationCounter
from headrace.pipeline.sampler.engine import Engine
from headrace.pipeline.sampler.moves import HostCopy
from headrace.pipeline.sampling import PLAIN, Sampling
from headrace.pipeline.types import Completion, FinishReason, Int32s, SampleRequest
from tests.sampler.draws import Row, behaviour, log_softmax, random_row
from tests.sampler.helpers import (
    CONFIG,
    MODEL,
    STOP,
    VOCAB,
    assert_same,
    learner_logits,
    learner_params,
    make_request,
    native_programs,
    sampler_params,
)

NEAR = 1e-3  # the oracle's cut is clear if no other one is nearer than this
TEMPERATURES = (1.0, 0.6, 1.7, 0.0)
Kv = Literal["keep", "recompute"]


def letters(tokens: Iterable[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def make_engine(kv: Kv = "keep") -> Engine:
    config = replace(CONFIG, kv_on_publish=kv)
    engine = Engine(
        config, decoder_model(MODEL, VOCAB), programs=native_programs(), decode_text=letters
    )
    engine.publish(sampler_params(0), 0)
    return engine


def run(engine: Engine, requests: Iterable[SampleRequest]) -> list[Any]:
    """Sample all at once; answers in the order of the requests."""
    tickets = range(len(requests := list(requests)))
    for ticket, request in zip(tickets, requests, strict=True):
        engine.submit(ticket, request)
    answers = run_out(engine)
    return [answers[ticket] for ticket in tickets]


def run_out(engine: Engine) -> dict[int, Any]:
    answers: dict[int, Any] = {}
    for _ in range(5000):
        if not engine.has_work:
            return answers
        answers |= dict(engine.step())
    raise AssertionError("the engine doesn't come to an end")


def special_request(seed: int, *, max_tokens: int | None = None) -> SampleRequest:
    """A request that asks for a random subset of everything."""
    rng = np.random.default_rng(seed)
    row = random_row(rng, VOCAB)
    sampling = replace(row.sampling, top_logprobs=int(rng.integers(0, 4)))
    request = make_request(seed, temperature=row.temperature, max_tokens=max_tokens)
    return replace(request, sampling=sampling)


# Laws 7, 9 and 16, many conversations at once

KINDS, TURNS, VERSIONS = 12, 3, 3


@dataclass(eq=False)
class Conversation:
    """A trajectory of several turns, decided by its kind and version alone.

    Kinds 4n to 4n + 3 have the same first prompt, as the members of a group do.
    """

    kind: int
    version: int | None
    history: list[tuple[SampleRequest, Completion]] = field(default_factory=list)

    def next_request(self) -> SampleRequest | None:
        """None where it is over."""
        turn = len(self.history)
        if turn == TURNS:
            return None
        if turn == 0:
            tokens = make_request(self.kind // 4).tokens
        else:
            request, completion = self.history[-1]
            seen = np.random.default_rng([self.kind, turn]).integers(0, VOCAB, 3)
            tokens = np.concatenate([request.tokens, completion.tokens, seen.astype(np.int32)])
        if len(tokens) >= CONFIG.context_tokens:
            return None
        sampling = PLAIN if self.kind % 3 else special_request(self.kind).sampling
        return SampleRequest(
            tokens,
            max_tokens=2 + (self.kind + turn) % 6,
            stop_ids=(STOP,),
            key=(self.kind, 1000 + (-1 if self.version is None else self.version) + 1),
            temperature=TEMPERATURES[self.kind % 4],
            version=self.version,
            sampling=sampling,
        )


@cache
def alone(kind: int, version: int) -> list[Completion]:
    """A pinned conversation without any neighbour."""
    engine = make_engine()
    if version:
        engine.publish(sampler_params(version), version)
    conversation = Conversation(kind, version)
    while (request := conversation.next_request()) is not None:
        conversation.history.append((request, run(engine, [request])[0]))
    return [completion for _, completion in conversation.history]


@dataclass
class Traffic:
    """An engine with many conversations."""

    engine: Engine
    newest: int = 0
    all: list[Conversation] = field(default_factory=list)
    running: dict[int, tuple[Conversation, SampleRequest]] = field(default_factory=dict)
    waiting: list[Conversation] = field(default_factory=list)  # for the environment
    tickets: int = 0

    def submit(self, conversation: Conversation) -> None:
        request = conversation.next_request()
        if request is not None:
            self.running[self.tickets] = conversation, request
            self.engine.submit(self.tickets, request)
            self.tickets += 1

    def act(self, kind: str, value: int) -> None:
        if kind == "open":
            version = (None, self.newest, max(0, self.newest - 1))[value % 3]
            same = [(one.kind, one.version) for one in self.all]
            for member in range(value // 3 % KINDS, KINDS):
                if (member, version) not in same:
                    self.all.append(Conversation(member, version))
                    return self.submit(self.all[-1])
        elif kind == "go on" and self.waiting:
            self.submit(self.waiting.pop(value % len(self.waiting)))
        elif kind == "cancel":
            self.engine.cancel(value)
            self.running.pop(value, None)
        elif kind == "publish" and self.newest + 1 < VERSIONS:
            self.newest += 1
            self.engine.publish(sampler_params(self.newest), self.newest)
        elif kind == "step":
            for _ in range(value % 5 + 1):
                self.take(self.engine.step())
        return None

    def take(self, answers: Iterable[tuple[int, Any]]) -> None:
        for ticket, answer in answers:
            if ticket in self.running:  # else it was cancelled on its way
                conversation, request = self.running.pop(ticket)
                conversation.history.append((request, answer))
                self.waiting.append(conversation)

    def finish(self) -> None:
        while self.running or self.waiting:
            while self.waiting:
                self.submit(self.waiting.pop())
            self.take(run_out(self.engine).items())


Actions = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 3 * KINDS)),
        st.tuples(st.just("open"), st.integers(0, 3 * KINDS)),
        st.tuples(st.just("go on"), st.integers(0, 9)),
        st.tuples(st.just("step"), st.integers(0, 9)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("publish"), st.just(0)),
    ),
    min_size=12,
    max_size=50,
)


@settings(max_examples=16)
@given(st.sampled_from(["keep", "recompute"]), Actions)
def test_laws_7_9_and_16_conversations_are_as_alone_and_nothing_is_left_of_them(
    kv: Kv, actions: list[tuple[str, int]]
) -> None:
    """Pinned ones bit for bit, short of pages, beside others; unpinned ones by the learner."""
    traffic = Traffic(make_engine(kv))
    for kind, value in actions:
        traffic.act(kind, value)
    traffic.finish()
    for conversation in traffic.all:
        if conversation.version is not None:
            expected = alone(conversation.kind, conversation.version)
            for (_, completion), other in zip(conversation.history, expected, strict=False):
                assert_same(completion, other)
                assert set(completion.policy_versions.tolist()) == {conversation.version}
        elif kv == "recompute":
            for request, completion in conversation.history:
                assert_is_the_learners(request, completion)
    statistics = traffic.engine.statistics()
    assert (statistics.rows_busy, statistics.waiting, statistics.pages_free) == (0, 0, 1)


def assert_is_the_learners(request: SampleRequest, completion: Completion) -> None:
    """Each logprob is that of the learner with the weights of the token's version."""
    sequence = np.concatenate([request.tokens, completion.tokens])
    for version in set(completion.policy_versions.tolist()):
        logits = learner_logits(learner_params(version), sequence)[len(request.tokens) - 1 :]
        for index in np.flatnonzero(completion.policy_versions == version).tolist():
            row = Row(logits[index], temperature=request.temperature)
            expected = log_softmax(row)[completion.tokens[index]]
            assert abs(completion.logprobs[index] - expected) < 1e-4


def test_law_9_a_publish_is_seen_by_what_is_cached_twice_in_a_row() -> None:
    """In flight with "recompute", and afresh with both: the prompt is there, of other weights."""
    for kv in ("keep", "recompute"):
        engine = make_engine(kv)
        requests = [replace(make_request(seed, max_tokens=9), stop_ids=()) for seed in range(5)]
        for version in (1, 2):
            for ticket, request in enumerate(requests):
                engine.submit(ticket, request)
            answers = dict(engine.step()) | dict(engine.step())
            engine.publish(sampler_params(version), version)
            answers |= run_out(engine)
            for ticket, request in enumerate(requests):
                versions = answers[ticket].policy_versions.tolist()
                assert versions[-1] == version
                assert kv == "keep" or set(versions) <= {version - 1, version}
                if kv == "recompute":
                    assert_is_the_learners(request, answers[ticket])
            for request, completion in zip(requests, run(engine, requests), strict=True):
                assert set(completion.policy_versions.tolist()) == {version}
                assert_is_the_learners(request, completion)
            engine.drop(version - 1)


# Law 8: what is drawn, and how likely it was


def test_law_8_logprobs_are_the_learners_and_the_kept_mass_makes_them_those_of_the_draw() -> None:
    requests = [replace(special_request(seed, max_tokens=12), stop_ids=()) for seed in range(24)]
    clear = 0
    for request, completion in zip(requests, run(make_engine(), requests), strict=True):
        assert_is_the_learners(request, completion)
        sequence = np.concatenate([request.tokens, completion.tokens])
        logits = learner_logits(learner_params(0), sequence)[len(request.tokens) - 1 :]
        assert completion.log_kept_mass is not None
        drawn = np.exp(completion.logprobs - completion.log_kept_mass)
        for index, token in enumerate(completion.tokens.tolist()):
            row = Row(
                logits[index].astype(np.float32),
                request.sampling,
                request.temperature,
                request.tokens.tolist(),
                completion.tokens[:index].tolist(),
            )
            probabilities, margin = behaviour(row)
            if margin > NEAR:
                clear += 1
                assert abs(drawn[index] - probabilities[token]) < 1e-3
            assert_top(completion, index, log_softmax(row), request.sampling.top_logprobs)
    assert clear > 100


def assert_top(completion: Completion, index: int, logprobs: Any, count: int) -> None:
    if not count:
        assert completion.top_logprobs is None
        return
    assert completion.top_logprobs is not None
    ids, values = (of[index] for of in completion.top_logprobs)
    assert len(set(ids.tolist())) == len(ids) == count
    np.testing.assert_allclose(values, logprobs[ids], atol=1e-4)
    np.testing.assert_allclose(values, np.sort(logprobs)[::-1][:count], atol=1e-4)


# Stops and constraints


def test_a_stop_string_ends_a_turn_where_it_is_complete_and_the_next_turn_goes_on() -> None:
    engine = make_engine()
    plain = [replace(make_request(seed, max_tokens=14), stop_ids=()) for seed in range(12)]
    texts = [letters(done.tokens.tolist()) for done in run(engine, plain)]
    strings = [text[4:6] for text in texts]
    stopping = [
        replace(request, sampling=Sampling(stop_strings=("!", string)))
        for request, string in zip(plain, strings, strict=True)
    ]
    for text, string, request, done in zip(
        texts, strings, stopping, run(engine, stopping), strict=True
    ):
        assert letters(done.tokens.tolist()) == text[: text.index(string) + 2]
        assert done.finish == FinishReason.STOP
        assert_is_the_learners(request, done)
        tokens = np.concatenate([request.tokens, done.tokens, np.array([5], np.int32)])
        before = engine.statistics().prefill_tokens
        [after] = run(engine, [replace(request, tokens=tokens, max_tokens=3)])
        assert_is_the_learners(replace(request, tokens=tokens), after)
        assert engine.statistics().prefill_tokens > before


def test_constraints_and_masks_say_what_is_drawn() -> None:
    def count_up(tokens: Int32s) -> set[int]:
        return {len(tokens) % VOCAB, (len(tokens) + 1) % VOCAB}

    allowed = (2, 3, 5, 7, 11)
    samplings = [
        Sampling(constraint=count_up),
        Sampling(constraint=count_up, allowed_tokens=tuple(range(0, VOCAB, 2))),
        Sampling(allowed_tokens=allowed),
        Sampling(logit_bias=((4, 1e4), (9, -1e4))),
        PLAIN,
    ]
    requests = [
        replace(make_request(seed, max_tokens=9), stop_ids=(), sampling=sampling)
        for seed, sampling in enumerate(samplings)
    ]
    engine = make_engine()
    both, even, masked, biased, plain = (done.tokens.tolist() for done in run(engine, requests))
    assert 0 < engine.statistics().constraint_seconds < engine.statistics().busy_seconds
    assert all(token in (index, index + 1) for index, token in enumerate(both))
    assert even == [0, 2, 2, 4, 4, 6, 6, 8, 8]
    assert set(masked) <= set(allowed)
    assert set(biased) == {4}
    engine = make_engine()
    assert plain == run(engine, requests[-1:])[0].tokens.tolist()
    assert engine.statistics().constraint_seconds == 0


class Unable(Exception):
    """A constraint's own error."""


def fails(tokens: Int32s) -> list[int]:
    if len(tokens) == 2:
        raise Unable
    return list(range(VOCAB))


def allows_none_then(tokens: Int32s) -> list[int]:
    return [] if len(tokens) else [1]


@pytest.mark.parametrize(
    ("constraint", "error"),
    [
        (fails, Unable),
        (allows_none_then, ValueError),
        (lambda tokens: [VOCAB], ValueError),
        (lambda tokens: [-1], ValueError),
    ],
)
@pytest.mark.parametrize("neighbours", [0, 7])
def test_an_error_of_a_constraint_is_its_callers_alone(
    constraint: Any, error: type[Exception], neighbours: int
) -> None:
    engine = make_engine()
    others = [make_request(seed) for seed in range(neighbours)]
    bad = replace(make_request(9, max_tokens=8), sampling=Sampling(constraint=constraint))
    answer, *done = run(engine, [bad, *others])
    assert isinstance(answer, error)
    for left, right in zip(done, run(make_engine(), others), strict=True):
        assert_same(left, right)
    assert engine.statistics().pages_free == 1


# What is counted, and what stays


def test_each_token_is_prefilled_once_for_a_group_and_over_four_turns() -> None:
    engine = make_engine()
    prompt = make_request(6).tokens[:9]
    group = [SampleRequest(prompt, 3, (), (member, 1)) for member in range(4)]
    histories = [
        np.concatenate([prompt, done.tokens]) for done in run(engine, group[: CONFIG.rows])
    ]
    assert engine.statistics().prefill_tokens == len(prompt) - 1
    seen = np.array([1, 2], np.int32)
    text = histories[2]
    for _ in range(3):
        text = np.concatenate([text, seen])
        [done] = run(engine, [replace(group[2], tokens=text)])
        text = np.concatenate([text, done.tokens])
    assert engine.statistics().prefill_tokens == len(prompt) - 1 + 3 * len(seen)
    assert engine.statistics().preemptions == 0


def test_nothing_compiles_and_nothing_stays_after_300_requests() -> None:
    """With all options, short of pages, cancelled here and there, of several versions."""
    engine = make_engine()
    rng = np.random.default_rng(0)
    params = [sampler_params(version) for version in range(VERSIONS)]
    with CompilationCounter() as compilations:
        for ticket in range(300):
            if ticket in (100, 200):
                version = ticket // 100
                engine.publish(params[version], version)
            versions = [None, ticket // 100, max(0, ticket // 100 - 1)]
            request = special_request(ticket, max_tokens=int(rng.integers(1, 25)))
            engine.submit(ticket, replace(request, version=versions[ticket % 3]))
            if ticket % 4 == 0:
                engine.step()
            if ticket % 7 == 0:
                engine.cancel(int(rng.integers(ticket + 1)))
        run_out(engine)
    assert compilations.total == 0
    statistics = engine.statistics()
    assert statistics.preemptions > 0
    assert (statistics.rows_busy, statistics.waiting, statistics.pages_free) == (0, 0, 1)
    for version in range(VERSIONS - 1):
        engine.drop(version)
    gc.collect()
    copies = [one for one in gc.get_objects() if isinstance(one, HostCopy)]
    idle = engine._scheduler._shards.memories[0]._idle.values()
    assert all(any(copy is one.copy for one in idle) for copy in copies)
    assert all(one.version == VERSIONS - 1 or not one.pinned for one in idle)


@pytest.mark.parametrize(("name", "factor"), [("", np.nan), ("key_norm", 1e33)])
def test_broken_weights_spoil_no_other_version(name: str, factor: float) -> None:
    """Nor what comes after them, which must not see the pages that they leave behind."""

    def broken(path: Any, weight: jax.Array) -> jax.Array:
        return weight * np.float32(factor) if name in jax.tree_util.keystr(path) else weight

    engine = make_engine()
    requests = [make_request(seed) for seed in range(6)]
    pinned = [replace(request, version=0) for request in requests]
    alone = run(engine, pinned)
    engine.publish(jax.tree.map_with_path(broken, sampler_params(1)), 1)
    for answer in run(engine, requests):
        assert (answer.tokens >= 0).all()
        assert (answer.tokens < VOCAB).all()
        assert not np.isnan(factor) or np.isnan(answer.logprobs).all()
    for left, right in zip(alone, run(engine, pinned), strict=True):
        assert_same(left, right)
    engine.publish(sampler_params(0), 2)
    for left, right in zip(alone, run(engine, requests), strict=True):
        np.testing.assert_array_equal(left.tokens, right.tokens)


def test_a_turn_without_an_observation_prefills_nothing() -> None:
    engine = make_engine()
    request = make_request(5, max_tokens=6)
    [first] = run(engine, [request])
    before = engine.statistics().prefill_tokens
    longer = np.concatenate([request.tokens, first.tokens])
    run(engine, [replace(request, tokens=longer, max_tokens=2)])
    assert engine.statistics().prefill_tokens == before


def test_text_that_cannot_be_made_fails_its_own_request() -> None:
    def raises(tokens: Iterable[int]) -> str:
        raise KeyError(list(tokens))

    engine = Engine(
        CONFIG, decoder_model(MODEL, VOCAB), programs=native_programs(), decode_text=raises
    )
    engine.publish(sampler_params(0), 0)
    request = make_request(3)
    stopping = replace(request, key=(9, 9), sampling=Sampling(stop_strings=("a",)))
    good, bad = run(engine, [request, stopping])
    assert isinstance(bad, KeyError)
    assert_same(good, run(engine, [request])[0])
    assert engine.statistics().pages_free == 1


def test_cancelled_requests_leave_the_queue() -> None:
    engine = make_engine()
    for ticket in range(2000):
        engine.submit(ticket, make_request(ticket))
        engine.cancel(ticket)
    assert sum(map(len, engine._scheduler._waiting._lines.values())) < 100
    [answer] = run(engine, [make_request(1)])
    assert isinstance(answer, Completion)
