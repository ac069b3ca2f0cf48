"""Views that stay on the device between dispatches give the bits of views that never do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Literal

import jax
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.models.parameters import init, unstack
from headrace.pipeline.sampler.cache import LayerCache, refresh
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.engine import Engine
from headrace.pipeline.sampler.programs import Decode, Programs, compile_programs
from headrace.pipeline.sampler.rows import NOBODY, DecodeInput
from headrace.pipeline.types import Completion, Int32s, SampleRequest
from tests.learner.toy import QUICK, quick_jit
from tests.sampler.helpers import STOP, VOCAB, assert_same

MODEL = ModelConfig(1, 16, 4, 2, 4, 24)
# Two windows, and pages for two of the eight rows at full length.
CONFIG = SamplerConfig(
    rows=8,
    context_tokens=256,
    decode_tokens=3,
    prefill_lanes=8,
    prefill_tokens=32,
    page_tokens=16,
    max_stop_ids=1,
    pages=40,
)
LENGTHS = (3, 20, 60, 100, 122, 126, 150, 210)  # of prompts
BUDGETS = (2, 5, 9, 60)
Kv = Literal["keep", "recompute"]


def make_params(key: jax.Array) -> Any:
    return unstack(init(MODEL, VOCAB, key))


@cache
def sampler_params(version: int) -> Any:
    """Few weights, published again and again."""
    return quick_jit(make_params)(jax.random.key(version % 3))


@cache
def programs() -> Programs:
    """Compiled quickly: they are compared with themselves only."""
    return compile_programs(CONFIG, decoder_model(MODEL, VOCAB), compiler_options=QUICK)


def forgetful(decode: Decode, params: Any, state: Any, views: Any, inputs: DecodeInput) -> Any:
    """Decode with views that are nobody's, so that every served row's window is copied."""
    nobodys = np.full(CONFIG.rows, NOBODY, np.int32)
    return decode(params, state, replace(views, tenures=nobodys), inputs)


@cache
def forgetful_programs() -> Programs:
    decodes = {window: partial(forgetful, one) for window, one in programs().decode.items()}
    return replace(programs(), decode=decodes)


@dataclass
class Pair:
    """Two engines that get the same calls, and decide the same as long as they answer the same.

    Attributes:
      windows: those of the dispatches so far.
      waiting: texts of turns that are over, for the next one.
    """

    kv: Kv
    newest: int = 0
    tickets: int = 0
    engines: list[Engine] = field(default_factory=list)
    windows: set[int] = field(default_factory=set)
    running: dict[int, SampleRequest] = field(default_factory=dict)
    waiting: list[tuple[SampleRequest, Int32s]] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = replace(CONFIG, kv_on_publish=self.kv)
        for compiled in (self._watched(programs()), forgetful_programs()):
            self.engines.append(Engine(config, decoder_model(MODEL, VOCAB), programs=compiled))
        self.each(lambda engine: engine.publish(sampler_params(0), 0))

    def each(self, call: Callable[[Engine], Any]) -> list[Any]:
        return [call(engine) for engine in self.engines]

    def submit(self, request: SampleRequest) -> None:
        self.running[self.tickets] = request
        self.each(lambda engine: engine.submit(self.tickets, request))
        self.tickets += 1

    def open(self, length: int, budget: int, version: int | None) -> None:
        tokens = np.random.default_rng(self.tickets // 2).integers(0, VOCAB, length)
        stop_ids = (STOP,) if self.tickets % 2 else ()
        key = self.tickets, 0 if version is None else 1
        self.submit(SampleRequest(tokens.astype(np.int32), budget, stop_ids, key, version=version))

    def go_on(self, number: int, budget: int) -> None:
        if not self.waiting:
            return
        request, text = self.waiting.pop(number % len(self.waiting))
        tokens = np.concatenate([text, np.array([5, 7], np.int32)])
        if len(tokens) < CONFIG.context_tokens:
            self.submit(replace(request, tokens=tokens, max_tokens=budget))

    def cancel(self, number: int) -> None:
        if self.running:
            ticket = sorted(self.running)[number % len(self.running)]
            self.each(lambda engine: engine.cancel(ticket))
            del self.running[ticket]

    def publish(self) -> None:
        self.newest += 1
        params = sampler_params(self.newest)
        self.each(lambda engine: engine.publish(params, self.newest))

    def step(self) -> None:
        kept, anew = (dict(answers) for answers in self.each(Engine.step))
        assert kept.keys() == anew.keys()
        for ticket, answer in kept.items():
            assert isinstance(answer, Completion)
            assert_same(answer, anew[ticket])
            np.testing.assert_array_equal(answer.policy_versions, anew[ticket].policy_versions)
            request = self.running.pop(ticket, None)
            if request is not None:  # else it was cancelled on its way
                self.waiting.append((request, np.concatenate([request.tokens, answer.tokens])))

    def act(self, kind: str, value: Sequence[int]) -> None:
        number, length, budget, pinned = value
        if kind == "open":
            self.open(LENGTHS[length], BUDGETS[budget], self.newest if pinned else None)
        elif kind == "go on":
            self.go_on(number, BUDGETS[budget])
        elif kind == "cancel":
            self.cancel(number)
        elif kind == "publish":
            self.publish()
        else:
            for _ in range(1 + number):
                self.step()

    def finish(self) -> None:
        while any(engine.has_work for engine in self.engines):
            self.step()
        assert not self.running

    def _watched(self, compiled: Programs) -> Programs:
        def watched(decode: Decode, window: int, *operands: Any) -> Any:
            self.windows.add(window)
            return decode(*operands)

        decodes = {
            window: partial(watched, decode, window) for window, decode in compiled.decode.items()
        }
        return replace(compiled, decode=decodes)


Numbers = st.tuples(
    st.integers(0, 7), st.integers(0, len(LENGTHS) - 1), st.integers(0, 3), st.booleans()
)
Actions = st.lists(
    st.tuples(
        st.sampled_from(["open", "open", "open", "step", "step", "go on", "cancel", "publish"]),
        Numbers,
    ),
    min_size=8,
    max_size=40,
)
# Short ones that get long, pages for all of them at first, and two versions.
MANY = [("open", (0, length, 3, number % 2)) for number, length in enumerate([2, 4, 0, 4, 1, 1])]
# It comes to the same row again, with a cache of other weights.
RECOMPUTED = [("open", (0, 2, 3, 0)), ("step", (2, 0, 0, 0)), ("publish", (0, 0, 0, 0))]
EVERYTHING = [
    *MANY,
    ("step", (3, 0, 0, 0)),
    ("cancel", (1, 0, 0, 0)),
    ("publish", (0, 0, 0, 0)),
    *MANY,
    ("step", (7, 0, 0, 0)),
    ("go on", (0, 0, 2, 0)),
    ("step", (2, 0, 0, 0)),
]


def assert_the_same(kv: Kv, actions: list[tuple[str, Any]]) -> Pair:
    pair = Pair(kv)
    for kind, value in actions:
        pair.act(kind, value)
    pair.finish()
    return pair


@settings(max_examples=10)
@given(st.sampled_from(["keep", "recompute"]), Actions)
@example("keep", EVERYTHING)
@example("recompute", EVERYTHING)
@example("recompute", RECOMPUTED)
def test_law_7_views_that_stay_give_the_bits_of_views_that_are_copied_in_every_dispatch(
    kv: Kv, actions: list[tuple[str, Any]]
) -> None:
    """Rows of two versions that are reused, parked, moved to new weights, cancelled."""
    assert_the_same(kv, actions)


def test_the_schedule_above_has_parked_rows_two_versions_and_both_windows() -> None:
    pair = assert_the_same("keep", EVERYTHING)
    assert pair.windows == set(CONFIG.windows) == {128, 256}
    assert pair.engines[0].statistics().preemptions > 0
    assert pair.newest == 1


@settings(max_examples=30)
@given(st.lists(st.booleans(), min_size=11, max_size=11), st.integers(0, 99))
def test_stale_rows_alone_are_copied(stale: list[bool], seed: int) -> None:
    """However many groups they make."""
    rng, rows, which = np.random.default_rng(seed), len(stale), np.array(stale)
    tables = rng.integers(0, 30, (rows, 3)).astype(np.int32)
    pages = LayerCache(*rng.normal(size=(2, 2, 30, 4, 5)).astype(np.float32))
    keys, values = (of[:, tables].reshape(2, rows, 12, 5) for of in pages)
    keys = keys.reshape(2, rows, 3, 4, 5).swapaxes(3, 4)  # blocks of 4
    old = LayerCache(np.full_like(keys, 9), np.full_like(values, 9))
    [found] = jit_refresh([pages], [old], tables, which)
    for of, new in zip(found, (keys, values), strict=True):
        np.testing.assert_array_equal(of[:, which], new[:, which])
        assert (np.asarray(of)[:, ~which] == 9).all()


jit_refresh = quick_jit(refresh)
