"""Multi-hop search: the corpus, the ranking, and that each hop is needed."""

from dataclasses import replace
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from headrace.envs import EnvConfig, LatencyConfig, Message, ToolCall, build_env, latency_seconds
from headrace.envs.search import LATENCY, SPEC, TOOL, expert, is_answer, search, tasks
from headrace.envs.search_corpus import RELATIONS, corpus

ENTITIES = sorted(corpus().links)


@given(st.sampled_from(ENTITIES))
def test_an_entity_s_own_document_is_found_by_its_name_and_has_all_its_links(entity: str) -> None:
    document = corpus().documents[entity]
    assert document in search(entity).split("\n")
    assert all(target in document for target in corpus().links[entity].values())


def test_links_lead_to_entities_of_the_right_kind() -> None:
    kinds = {entity: _kind(entity) for entity in ENTITIES}
    for entity, links in corpus().links.items():
        assert {name for name, link in RELATIONS.items() if link.of == kinds[entity]} == set(links)
        for name, target in links.items():
            assert kinds.get(target, "") == RELATIONS[name].to


def _kind(entity: str) -> str:
    return "river" if entity.startswith("the ") else "person" if " " in entity else "town"


@given(st.integers(0, 2**31))
def test_the_answer_is_in_the_last_document_only_and_not_in_the_question(seed: int) -> None:
    (task,) = tasks("train", 1, seed)
    _, question, *rest = expert(task)
    answer = rest[-1].content
    assert task.data["start"] in question.content
    documents = [message.content for message in rest if message.role == "tool"]
    assert len(documents) == len(task.data["relations"]) in (2, 3)
    assert answer in documents[-1]


def test_a_search_for_nothing_known_is_an_answer() -> None:
    result = trio.run(TOOL, ToolCall("search", {"query": "zzz " * 1000}))
    assert result.is_error
    assert "nothing found for 'zzz zzz" in result.content
    assert len(result.content) < 100


def test_answers_are_read_from_the_end() -> None:
    assert is_answer("It is the Benn", "the Benn")
    assert is_answer("1320.", "1320")
    assert not is_answer("", "1320")
    assert not is_answer("Ada Brandt or Dov Gant", "Ada Brandt")


def test_six_calls_are_answered_and_a_seventh_ends_it() -> None:
    async def episode() -> list[bool]:
        async with SPEC.make() as env:
            await env.reset(tasks("eval", 1, 0)[0], 0)
            call = Message("assistant", "", (ToolCall("search", {"query": "Ada"}),))
            return [(await env.step(call)).terminated for _ in range(7)]

    assert trio.run(episode) == [False] * 6 + [True]


def test_the_tool_is_slow_of_itself_and_a_recipe_may_say_otherwise() -> None:
    (task,) = tasks("eval", 1, 0)

    async def waited(config: LatencyConfig) -> float:
        async with build_env(EnvConfig("search", config)).make() as env:
            await env.reset(task, 7)
            began = trio.current_time()
            await env.step(Message("assistant", "", (ToolCall("search", {"query": "Ada"}),)))
            searched = trio.current_time() - began
            await env.step(Message("assistant", "nobody"))
            assert trio.current_time() - began == searched
        return searched

    def seconds(**changes: Any) -> float:
        config = LatencyConfig(**changes)
        return trio.run(waited, config, clock=MockClock(autojump_threshold=0))

    for seed in (0, 1):
        own = latency_seconds(replace(LATENCY, seed=seed), task.id, 7, 0)
        assert seconds(seed=seed) == pytest.approx(own)
        assert own > 0
    assert seconds(kind="constant", mean_seconds=0.25) == 0.25
    assert seconds(kind="constant", mean_seconds=0.0) == 0.0
