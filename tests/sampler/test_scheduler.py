"""The scheduler, in the real engine, against a device whose pages say what is in them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.sampler.config import DrawLimits, SamplerConfig
from headrace.pipeline.sampler.engine import Engine
from headrace.pipeline.sampler.occupant import Occupant
from headrace.pipeline.sampler.rows import NOBODY
from headrace.pipeline.sampler.scheduler import Scheduler
from headrace.pipeline.sampling import PLAIN, Sampling
from headrace.pipeline.types import Completion, FinishReason, Int32s, SampleRequest
from tests.sampler.cells import STOP, VOCAB, Cell, CellDevice, alone
from tests.sampler.conservation import assert_conserved, held

NEVER_STOPS = 99  # a budget; requests with it have no stop id
NO_MODEL = decoder_model(ModelConfig(1, 1, 1, 1, 2, 1), VOCAB)
EVEN = SamplerConfig(
    rows=4,
    context_tokens=24,
    decode_tokens=2,
    prefill_lanes=2,
    prefill_tokens=4,
    max_stop_ids=1,
    page_tokens=4,
    draws=DrawLimits(token_masks=True),
)
ODD = replace(EVEN, decode_tokens=3, prefill_tokens=6, page_tokens=2, prefill_lanes=4)
WIDE = replace(EVEN, decode_tokens=5, prefill_tokens=2, page_tokens=8)
CONFIGS = [
    replace(sizes, pages=pages, kv_on_publish=kv)
    for sizes in (EVEN, ODD, WIDE)
    for pages in (sizes.fewest_pages, sizes.fewest_pages + 3, 0)
    for kv in ("keep", "recompute")
]


class Refused(Exception):
    """A constraint has no answer."""

    def __init__(self, key: tuple[int, int]):
        self.key = key


def allow_all(run: "Run", key: tuple[int, int], sampled: Int32s) -> list[int]:
    """A constraint that checks what it is told."""
    first = len(run.device.state.prompts[key])
    drawn = run.device.state.drawn.get(key, {})
    assert sampled.tolist() == [drawn[first + index] for index in range(len(sampled))]
    return list(range(VOCAB))


def allow_two(run: "Run", key: tuple[int, int], sampled: Int32s) -> list[int]:
    if len(sampled) >= 2:
        raise Refused(key)
    return allow_all(run, key, sampled)


def letters(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def ends(request: SampleRequest, tokens: list[int]) -> bool:
    """Whether a turn ends after these tokens, unless the budget ends it."""
    if not tokens:
        return False
    text = letters(tokens)
    return tokens[-1] in request.stop_ids or any(
        string in text for string in request.sampling.stop_strings
    )


SAMPLINGS = [
    PLAIN,
    PLAIN,
    Sampling(stop_strings=("e", "hg", "bb")),
    Sampling(constraint=allow_all),
    Sampling(constraint=allow_two),
]


@dataclass(eq=False)
class Conversation:
    """A trajectory: one request after the other, each with all tokens of the one before.

    Attributes:
      version: to which its requests are pinned.
      cells: what is cached for it if nobody disturbs it; of pinned ones.
    """

    key: tuple[int, int]
    request: SampleRequest
    version: int | None
    turns: int = 0
    over: bool = False
    running: bool = True
    text: Int32s = field(default_factory=lambda: np.zeros(0, np.int32))
    cells: list[Cell] = field(default_factory=list)


@dataclass
class Run:
    """An engine, its device, and what became of each request."""

    config: SamplerConfig
    shards: int = 1
    conversations: list[Conversation] = field(default_factory=list)
    running: dict[int, Conversation] = field(default_factory=dict)  # by ticket
    live: list[int] = field(default_factory=list)  # versions
    tickets: int = 0

    def __post_init__(self) -> None:
        self.device = CellDevice(self.config, self.shards)
        # One device of the mesh is a shard; the programs over cells need no devices.
        mesh = jax.sharding.Mesh(
            np.array(jax.devices()[: self.shards]).reshape(self.shards, 1), ("fsdp", "tensor")
        )
        programs = self.device.programs()
        self.engine = Engine(
            self.config, NO_MODEL, mesh=mesh, programs=programs, decode_text=letters
        )
        self.publish()

    @property
    def idle(self) -> list[Conversation]:
        """Conversations that wait for their environment, the youngest first."""
        return [one for one in self.conversations if not (one.over or one.running)][::-1]

    @property
    def scheduler(self) -> Scheduler:
        return self.engine._scheduler

    def publish(self) -> None:
        version = len(self.live) and self.live[-1] + 1
        self.engine.publish(version, version)
        self.live.append(version)
        self.drop()

    def drop(self) -> None:
        needed = {self.live[-1], *(one.version for one in self.conversations if not one.over)}
        for version in set(self.live) - needed:
            self.engine.drop(version)
            self.live.remove(version)

    def open(
        self, prompt: Int32s, budget: int, *, sampling: Sampling = PLAIN, **changes: Any
    ) -> None:
        key = (len(self.conversations), 3)
        stop_ids = (STOP,) if len(self.conversations) % 3 and budget < NEVER_STOPS else ()
        if sampling.constraint is not None:
            sampling = replace(sampling, constraint=partial(sampling.constraint, self, key))
        request = SampleRequest(prompt, budget, stop_ids, key, sampling=sampling, **changes)
        self.conversations.append(Conversation(key, request, request.version))
        self.submit(self.conversations[-1], request)

    def submit(self, conversation: Conversation, request: SampleRequest) -> None:
        conversation.request, conversation.running = request, True
        self.device.state.prompts[request.key] = request.tokens
        self.running[self.tickets] = conversation
        self.engine.submit(self.tickets, request)
        self.tickets += 1

    def go_on(
        self, conversation: Conversation, seen: int, budget: int, *, edited: bool = False
    ) -> None:
        """The next turn of a conversation, after so many tokens of its environment.

        Args:
          edited: another first token, so that nothing of the last turn can be used.
        """
        tokens = np.concatenate([conversation.text, np.arange(seen, dtype=np.int32) + 3])
        if edited:
            tokens[0] = (tokens[0] + 1) % VOCAB
            conversation.cells = []
        if len(tokens) >= self.config.context_tokens:
            conversation.over = True
        else:
            request = replace(conversation.request, tokens=tokens, max_tokens=budget)
            self.submit(conversation, request)

    def cancel(self, ticket: int) -> None:
        before = self.engine.statistics().cancelled
        self.engine.cancel(ticket)
        cancelled = self.engine.statistics().cancelled - before
        assert cancelled <= (ticket in self.running)
        if cancelled:  # else it has left, or its completion is on its way
            conversation = self.running.pop(ticket)
            conversation.over, conversation.running = True, False

    def step(self) -> None:
        for ticket, answer in self.engine.step():
            conversation = self.running.pop(ticket)
            conversation.running = False
            if isinstance(answer, Refused):
                assert answer.key == conversation.key
                conversation.over = True
            else:
                assert isinstance(answer, Completion)
                self.take(conversation, answer)
        self.check()

    def take(self, conversation: Conversation, completion: Completion) -> None:
        request = conversation.request
        room = min(request.max_tokens, self.config.context_tokens - len(request.tokens))
        assert_whole(request, completion, room)
        conversation.text = np.concatenate([request.tokens, completion.tokens])
        conversation.turns += 1
        if request.version is None:
            return
        stops = partial(ends, request)
        expected = alone(request, conversation.cells, budget=room, stops=stops)
        assert completion.tokens.tolist() == expected.tokens
        np.testing.assert_array_equal(completion.logprobs, expected.logprobs)
        conversation.cells = expected.cells

    def check(self) -> None:
        scheduler = self.scheduler
        assert scheduler.waiting + scheduler.rows_busy <= len(self.running)
        occupants = scheduler._running.values()
        for shard, memory in enumerate(scheduler._shards.memories):
            busy = [self.pages_of(one) for one in occupants if one.shard == shard]
            assert_conserved(memory, busy)
        assert len({one.row for one in occupants}) == scheduler.rows_busy <= self.config.rows

    def pages_of(self, occupant: Occupant) -> list[int]:
        """The pages of a request with a row."""
        rows, row = self.scheduler._rows, occupant.row
        if rows.tenures[row] == NOBODY:
            return held(occupant.cached)
        pages: list[int] = rows._tables[row, : rows._of.pages[row]].tolist()
        assert len(set(pages)) == len(pages)
        return pages

    def finish(self) -> None:
        for _ in range(60 * self.tickets):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.running
        statistics = self.engine.statistics()
        assert (statistics.rows_busy, statistics.waiting, statistics.pages_free) == (0, 0, 1)
        assert statistics.prefill_tokens == self.device.state.prefilled
        for conversation in self.conversations:
            conversation.over = True
        self.publish()
        self.drop()
        assert self.live == [self.scheduler.newest]


def assert_whole(request: SampleRequest, completion: Completion, room: int) -> None:
    tokens, versions = completion.tokens.tolist(), completion.policy_versions
    assert 1 <= len(tokens) <= room
    assert len(completion.logprobs) == len(versions) == len(tokens)
    assert not any(ends(request, tokens[:count]) for count in range(len(tokens)))
    stopped = ends(request, tokens)
    assert completion.finish == (FinishReason.STOP if stopped else FinishReason.LENGTH)
    assert stopped or len(tokens) == room
    assert (np.diff(versions) >= 0).all()
    assert request.version is None or set(versions.tolist()) == {request.version}


TEXTS = np.random.default_rng(0).integers(3, VOCAB, (3, EVEN.context_tokens)).astype(np.int32)
Prompts = st.builds(
    lambda text, length: TEXTS[text, :length],
    st.integers(0, len(TEXTS) - 1),
    st.one_of(st.integers(1, EVEN.context_tokens - 1), st.sampled_from([4, 9, 13, 21])),
)
Openings = st.fixed_dictionaries(
    {
        "prompt": Prompts,
        "budget": st.sampled_from([2, 3, 5, 9, NEVER_STOPS]),
        "members": st.sampled_from([1, 2, 4]),
        "pinned": st.sampled_from([None, -1, 0]),  # to the newest one, or the oldest
        "priority": st.integers(0, 2),
        "sampling": st.sampled_from(SAMPLINGS),
    }
)
Actions = st.lists(
    st.one_of(
        st.tuples(st.just("open"), Openings),
        st.tuples(st.just("replace"), Openings),
        st.tuples(st.just("step"), st.integers(1, 12)),
        st.tuples(st.just("go on"), st.tuples(st.integers(1, 4), st.integers(1, 6))),
        st.tuples(st.just("edited"), st.tuples(st.integers(1, 1), st.integers(1, 6))),
        st.tuples(st.just("end"), st.integers(0, 6)),
        st.tuples(st.just("publish"), st.none()),
    ),
    min_size=10,
    max_size=50,
)


def act(run: Run, kind: str, value: Any) -> None:
    if kind in ("open", "replace"):
        if kind == "replace" and run.running:  # it may have a row, and results on their way
            run.cancel(next(reversed(run.running)))
        members, pinned = value["members"], value["pinned"]
        version = None if pinned is None else run.live[pinned]
        kwargs = {name: value[name] for name in ("prompt", "budget", "priority", "sampling")}
        for _ in range(members):
            run.open(version=version, **kwargs)
    elif kind == "step":
        for _ in range(value):
            run.step()
    elif kind in ("go on", "edited"):
        count, seen = value
        for conversation in run.idle[:count]:
            run.go_on(conversation, seen, budget=1 + seen, edited=kind == "edited")
    elif kind == "publish":
        run.publish()
    elif value < len(run.idle):
        run.idle[value].over = True
        run.drop()


@settings(max_examples=90)
@given(st.sampled_from(CONFIGS), st.sampled_from([1, 1, 2]), Actions)
def test_laws_7_and_16_a_pinned_conversation_is_as_alone_and_everything_is_given_back(
    config: SamplerConfig, shards: int, actions: list[tuple[str, Any]]
) -> None:
    """Unpinned ones read their own text, each position computed from the one before.

    Also with the fewest pages: nothing waits for ever.
    """
    run = Run(replace(config, pages=config.pages * shards), shards)
    for kind, value in actions:
        act(run, kind, value)
        run.check()
    run.finish()


@settings(max_examples=40)
@given(
    st.lists(st.tuples(Prompts, st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=7),
    st.integers(1, 4),
)
def test_each_token_is_prefilled_once_and_a_groups_prompt_once_for_all(
    openings: list[tuple[Int32s, int, int]], members: int
) -> None:
    run = Run(EVEN)
    pieces: set[tuple[int, ...]] = set()  # starts of texts that end with a page or the text
    expected = 0
    for prompt, budget, _ in openings:
        text, size = prompt[:-1].tolist(), EVEN.page_tokens
        for start in range(0, len(text), size):
            piece = tuple(text[: start + size])
            expected += 0 if piece in pieces else len(piece) - start
            pieces.add(piece)
        for _ in range(members if len(openings) < 3 else 1):
            run.open(prompt, budget)
    while any(one.running for one in run.conversations):
        run.step()
    for conversation, (_, budget, turns) in zip(run.conversations, openings, strict=False):
        for seen in range(1, turns + 1):
            before = len(conversation.text)
            run.go_on(conversation, seen, budget)
            expected += 0 if conversation.over else seen
            while conversation.running:
                run.step()
            assert conversation.over or len(conversation.text) > before
    run.finish()
    assert run.engine.statistics().prefill_tokens == expected
    assert run.engine.statistics().preemptions == run.device.state.extracted == 0


Arrivals = st.tuples(
    st.lists(st.tuples(Prompts, st.sampled_from([None, 0])), max_size=3), st.integers(1, 3)
)


@given(st.integers(1, 4), st.lists(Arrivals, min_size=1, max_size=6))
def test_a_row_whose_prompt_is_cached_never_waits_longer_than_one_chunk(
    lanes: int, arrivals: list[tuple[list[tuple[Int32s, int | None]], int]]
) -> None:
    """However many prompts wait, and however long: rows of both versions, steps between them."""
    run = Run(replace(EVEN, prefill_lanes=lanes, prefill_tokens=2))
    run.open(TEXTS[0, :2], NEVER_STOPS, version=0)
    run.publish()
    for openings, steps in arrivals:
        for prompt, version in openings:
            run.open(prompt, NEVER_STOPS, version=version)
        for _ in range(steps):
            rows, before = run.scheduler._rows, run.engine.statistics().dispatches
            ready = [version for version in run.live if rows.unfinished(version).any()]
            run.step()
            assert run.engine.statistics().dispatches >= before + len(ready)
    run.finish()


@pytest.mark.parametrize(
    ("rows", "steps"),
    [(1, 1), (2, 2), (3, 2), (4, 2)],  # until something decodes; each prefills one prompt
)
def test_rows_that_start_wait_one_chunk_for_as_many_that_need_their_prompts(
    rows: int, steps: int
) -> None:
    run = Run(replace(EVEN, prefill_lanes=1))
    for first in range(rows):
        run.open(np.array([3 + first, 3], np.int32), 2)
    for _ in range(steps):
        assert run.engine.statistics().dispatches == 0
        run.step()
    assert run.engine.statistics().dispatches == 1
    run.finish()


@pytest.mark.parametrize(
    ("more_pages", "steps", "members", "length"),
    [(3, 6, 2, 17), (2, 2, 3, 20), (4, 5, 2, 20)],  # it is parked at 12, 12 and 16 positions
)
def test_a_group_shares_its_prompt_although_a_member_is_parked_in_the_middle_of_it(
    more_pages: int, steps: int, members: int, length: int
) -> None:
    sizes = replace(EVEN, prefill_lanes=1)
    run = Run(replace(sizes, pages=sizes.fewest_pages + more_pages))
    run.open(TEXTS[1, :2], NEVER_STOPS)
    for _ in range(steps):
        run.step()
    for _ in range(members):
        run.open(TEXTS[0, :length], 2, priority=1)
    parked_in_prompt = False
    while run.running:
        before, prefilling = run.engine.statistics(), set(run.scheduler._prefilling.values())
        run.step()
        lost_row = {one for one in prefilling if one.row < 0 and one.ticket in run.running}
        parked_in_prompt |= bool(lost_row)
        assert run.engine.statistics().preemptions >= before.preemptions + len(lost_row)
    run.finish()
    assert parked_in_prompt
    assert run.engine.statistics().prefill_tokens == 1 + length - 1


@pytest.mark.parametrize("version", [None, 0])
def test_what_was_evicted_between_two_turns_is_counted_or_comes_back(version: int | None) -> None:
    run = Run(replace(EVEN, pages=EVEN.fewest_pages))
    for text in TEXTS[:2]:
        run.open(text[:13], 3, version=version)
        while run.running:
            run.step()
    for turn, count in enumerate([1, 2] if version is None else [0, 0]):
        first = run.conversations[turn]
        before = run.engine.statistics()
        run.go_on(first, 2, 2)
        while first.running:
            run.step()
        after = run.engine.statistics()
        assert after.preemptions == count
        prefilled = after.prefill_tokens - before.prefill_tokens
        # Its prompt may be there still, but what it sampled was lost.
        assert prefilled > 2 if version is None else prefilled == 2
    run.finish()


def test_what_was_lost_in_one_shard_is_counted_where_it_goes_on_in_another() -> None:
    run = Run(replace(EVEN, pages=2 * EVEN.fewest_pages), shards=2)
    run.open(TEXTS[0, :13], 3)
    while run.running:
        run.step()
    run.open(TEXTS[1, :21], 3)
    run.step()
    assert run.scheduler._shards.memories[0].idle == 0
    run.go_on(run.conversations[0], 2, 2)
    run.finish()
    assert run.engine.statistics().preemptions == 1


def test_what_comes_back_from_the_host_makes_room_at_the_cost_of_others() -> None:
    """It is the first in the order of eviction, and isn't evicted for itself."""
    run = Run(replace(EVEN, pages=EVEN.fewest_pages))
    for text in TEXTS:
        run.open(text[:13], 3, version=0)
        while run.running:
            run.step()
    for _ in range(3):
        for conversation in run.conversations:
            run.go_on(conversation, 1, 1)
            while conversation.running:
                run.step()
    run.finish()
    assert run.device.state.extracted >= 9
    assert run.engine.statistics().preemptions == 0


def test_law_9_a_prompt_that_is_half_filled_when_weights_are_published_has_one_version() -> None:
    run = Run(EVEN)
    run.open(TEXTS[1, :3], 2, version=0)  # holds version 0
    while run.running:
        run.step()
    run.open(TEXTS[0, :22], 2)
    run.step()
    assert run.scheduler._prefilling
    run.publish()
    run.open(TEXTS[0, :22], 2, version=0)
    run.open(TEXTS[0, :22], 2, version=1)
    run.open(TEXTS[0, :22], 2)
    run.finish()
    for conversation in run.conversations[1:]:
        request = replace(conversation.request, version=conversation.version or 0)
        if conversation.version is None:
            request = replace(request, version=1)
        expected = alone(request, [], budget=2, stops=partial(ends, request))
        assert conversation.text[22:].tolist() == expected.tokens


def test_law_7_late_results_are_not_those_of_the_rows_new_request() -> None:
    run = Run(replace(EVEN, rows=1, prefill_lanes=1))
    run.open(TEXTS[0, :2], NEVER_STOPS, version=0)
    for _ in range(3):
        run.step()
    assert run.engine._unread
    run.cancel(0)
    run.open(TEXTS[1, :2], 9, version=0)
    run.finish()


def test_who_gives_up_a_row_is_the_youngest_and_is_counted() -> None:
    run = Run(replace(EVEN, pages=EVEN.fewest_pages))
    for text, priority in zip(TEXTS, (2, 0, 1), strict=True):
        run.open(text[:2], NEVER_STOPS, priority=priority)
    ended: list[int] = []
    while run.running:
        run.step()
        ended += [index for index, one in enumerate(run.conversations) if one.turns]
    assert list(dict.fromkeys(ended)) == [1, 2, 0]
    assert run.engine.statistics().preemptions == run.device.state.extracted > 0
    run.finish()


def test_long_texts_go_through_all_windows_beside_short_ones() -> None:
    sizes = replace(EVEN, context_tokens=200, page_tokens=16, prefill_tokens=16)
    run = Run(replace(sizes, pages=sizes.fewest_pages + 4))
    assert run.config.windows == (128, 256)
    rng = np.random.default_rng(0)
    for length in (5, 100, 126, 128, 129, 170, 198):
        prompt = rng.integers(0, VOCAB, length).astype(np.int32)
        for version in (0, None):
            run.open(prompt, NEVER_STOPS, version=version)
    run.finish()


def test_smaller_priorities_get_rows_first_then_earlier_arrivals() -> None:
    run = Run(replace(EVEN, rows=1, prefill_lanes=1))
    for priority in [5, 2, 5, 1, 2, 1]:
        run.open(TEXTS[0, :1], 1, priority=priority)
    run.cancel(3)
    order: list[int] = []
    while run.running:
        before = set(run.running)
        run.step()
        order += sorted(before - set(run.running))
    assert order == [5, 1, 4, 0, 2]


def test_a_cancelled_row_falls_silent_even_if_it_is_given_away_at_once() -> None:
    run = Run(replace(EVEN, rows=2))
    for _ in range(2):
        run.open(TEXTS[0, :2], NEVER_STOPS)
    while sum(run.device.state.rows.active) < 2:
        run.step()
    for ticket in range(2):
        run.cancel(ticket)
    assert run.engine.statistics().pages_free == 1
    drawn = {key: dict(tokens) for key, tokens in run.device.state.drawn.items()}
    run.open(TEXTS[1, :19], 2)
    run.finish()
    assert not run.device.state.rows.active.any()
    assert drawn.items() < run.device.state.drawn.items()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 0}, "sampler.rows must be >= 1, got 0"),
        ({"context_tokens": 1}, "context_tokens must be >= 2"),
        ({"page_tokens": 24}, "page_tokens must be a power of two up to 128, got 24"),
        ({"page_tokens": 256}, "page_tokens must be a power of two up to 128, got 256"),
        ({"context_tokens": 33, "pages": 4}, r"pages must be >= 5 \(one request .*, got 4"),
    ],
)
def test_impossible_sizes_are_config_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SamplerConfig(**changes)


def test_impossible_limits_of_draws_are_config_errors() -> None:
    with pytest.raises(ConfigError, match="max_logit_bias must be >= 0, got -1"):
        DrawLimits(max_logit_bias=-1)


@given(st.integers(2, 3000), st.integers(1, 300), st.sampled_from([1, 8, 128]))
def test_windows_cover_the_context_in_powers_of_two(context: int, chunk: int, page: int) -> None:
    config = SamplerConfig(context_tokens=context, prefill_tokens=chunk, page_tokens=page)
    assert config.cache_tokens >= context
    assert config.cache_tokens % chunk == config.cache_tokens % page == 0
    *shorter, last = config.windows
    assert last == config.cache_tokens
    assert shorter == [128 * 2**n for n in range(len(shorter))]
    needed = min(context, chunk)
    assert config.window_for(needed) >= needed
    assert all(window % page == 0 for window in config.windows)
