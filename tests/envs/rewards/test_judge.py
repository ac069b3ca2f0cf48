"""A judge on a server of this machine: scores, retries, and answers that are no score."""

import math
from contextlib import suppress

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.envs import EpisodeRecord, Message, Reward, Task
from headrace.envs.http_client import HttpError, post_json
from headrace.envs.rewards import Judge, JudgeConfig, JudgeError, RewardFailed, Scorer
from headrace.envs.rewards.judge import read_score
from tests.fakes.http_server import completion, reply, serving
from tests.fakes.reward_functions import ask

EPISODE = EpisodeRecord(Task("t"), (Message("user", "1+1?"), Message("assistant", "2")))


def judged(*replies, **config):
    """Return the score, or the error, and the server."""

    async def main():
        async with serving(*replies) as server:
            options = {"pause_seconds": 0.0, **config}
            judge = Judge(JudgeConfig(server.url, "small", **options), ask)
            try:
                return await judge(EPISODE), server
            except JudgeError as error:
                return error, server
            finally:
                await wait_until_closed(server)

    return trio.run(main)


async def wait_until_closed(server):
    with trio.fail_after(5.0):
        while server.open_now:
            await trio.sleep(0.001)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_score_and_what_was_asked(chunked):
    score, server = judged(completion('Good. {"score": 0.75}', chunked=chunked), api_key="s3cret")
    assert score == 0.75
    ((head, body),) = server.requests
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer s3cret" in head
    assert body == {
        "model": "small", "temperature": 0.0, "max_tokens": 1024,
        "messages": [{"role": "user", "content": "Score this answer from 0 to 1: 2"}],
    }  # fmt: skip


def test_an_answer_without_a_length_ends_with_the_connection():
    head, _, body = completion("1").partition(b"\r\n\r\n")
    bare = b"\r\n".join(line for line in head.split(b"\r\n") if b"Length" not in line)
    score, _ = judged(b"HTTP/1.1 100 Continue\r\n\r\n" + bare + b"\r\n\r\n" + body)
    assert score == 1.0


@pytest.mark.parametrize(
    "failure",
    [
        reply("busy", 429, "Retry-After: 0\r\n"), reply("oh", 503), None, b"HTTP/1.1 200 OK\r\n",
        b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort", 60.0,
    ],
)  # fmt: skip
def test_what_may_pass_is_tried_again(failure):
    score, server = judged(failure, failure, completion("0.5"), attempt_seconds=0.1)
    assert score == 0.5
    assert len(server.requests) == 3


def test_attempts_are_bounded_and_the_last_failure_is_told():
    error, server = judged(reply("try later", 503), attempts=3)
    assert str(error) == 'no answer after 3 requests, the last time: status 503: "try later"'
    assert len(server.requests) == 3
    error, server = judged(60.0, attempts=2, attempt_seconds=0.05)
    assert "no answer in 0.05 s" in str(error)


def test_a_refusal_is_not_tried_again_and_shows_no_key():
    error, server = judged(reply({"error": "no such model"}, 404), api_key="s3cret")
    assert "the server refuses: status 404" in str(error)
    assert "no such model" in str(error)
    assert len(server.requests) == 1
    assert "s3cret" not in repr(JudgeConfig("http://a", "b", api_key="s3cret"))


@pytest.mark.parametrize(
    "body", [{}, {"choices": []}, {"choices": [{"message": {"content": None}}]}, [1], b"<html>"]
)
def test_what_is_no_completion_is_no_score(body):
    error, _ = judged(reply(body))
    assert "no chat completion" in str(error)


def test_an_endless_answer_is_cut():
    async def main():
        flood = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_000_000
        endless = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n"
        async with serving(flood, endless) as server:
            for _ in range(2):
                with pytest.raises(HttpError, match="too long"):
                    await post_json(server.url, {}, headers={}, max_bytes=1000)
            await wait_until_closed(server)

    trio.run(main)


def test_a_server_that_is_not_there():
    async def main():
        async with serving(completion("1")) as server:
            url = server.url
        judge = Judge(JudgeConfig(url, "m", attempts=2, pause_seconds=0.0), ask)
        with pytest.raises(JudgeError, match=r"no connection to 127\.0\.0\.1:"):
            await judge(EPISODE)

    trio.run(main)


def test_as_a_reward_it_asks_from_worker_processes():
    async def main():
        async with serving(completion("0.5"), completion("much")) as server:
            judge = Judge(JudgeConfig(server.url, "m", api_key="s3cret"), ask)
            scorer = Scorer([Reward("judge", judge, concurrency=1)])
            assert await scorer.score(EPISODE) == {"env": 0.0, "judge": 0.5}
            with pytest.raises(RewardFailed, match="JudgeError: the answer has no score of 0 to"):
                await scorer.score(EPISODE)
            assert b"Bearer s3cret" in server.requests[0][0]

    trio.run(main)


def test_as_a_reward_in_the_loop_it_has_places_and_a_deadline_and_leaves_no_connection():
    async def main():
        async with serving(0.01, completion("1")) as server:
            judge = Judge(JudgeConfig(server.url, "m", pause_seconds=0.0), ask)
            scorer = Scorer([Reward("judge", judge, concurrency=2, in_loop=True)])
            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(scorer.score, EPISODE)
            assert server.most_open <= 3  # one may still be closing
        async with serving(60.0) as server:
            judge = Judge(JudgeConfig(server.url, "m"), ask)
            reward = Reward("judge", judge, deadline_seconds=0.05, in_loop=True)
            with pytest.raises(RewardFailed, match=r"'judge'.* took more than 0\.05 s"):
                await Scorer([reward]).score(EPISODE)

    trio.run(main)


# Verdicts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("1", 1.0), (" 0.25\n", 0.25), ('{"score": 1}', 1.0),
        ('{"score": 0} no, {"why": {"score": 0}, "score": 0.5}', 0.5),
        ('```json\n{"score": 0.5}\n```', 0.5), ('<think>{"score": 1}</think>{"score": 0}', 0.0),
        ('{"a": 1} {"score": 0.1} {', 0.1),
    ],
)  # fmt: skip
def test_scores(text, score):
    assert read_score(text) == score


@pytest.mark.parametrize(
    "text",
    [
        "", "good", "8/10", "1.5", "-1", "NaN", "Infinity", "true", '{"score": true}',
        '{"score": "1"}', '{"score": 7}', '{"score": NaN}', '{"score": 1', "[1]",
        "<think>1", '{"score": 0.5} {"score": "high"}', "1" * 5000,
    ],
)  # fmt: skip
def test_no_scores(text):
    with pytest.raises(JudgeError, match="has no score of 0 to 1"):
        read_score(text)


@given(st.text())
@example("{" * 3000)
@example("[" * 100_000)
def test_any_text_is_a_score_or_none(text):
    with suppress(JudgeError):
        assert 0 <= read_score(text) <= 1


@given(st.floats(0, 1), st.text(), st.text())
def test_the_last_object_counts_whatever_stands_around_it(score, before, after):
    after = after.replace("{", "(")
    text = f'{before} {{"score": {score}}} {after}'
    if "</think>" not in after:
        assert read_score(text) == score


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "ftp://a"), ("url", "http://"), ("temperature", -1.0), ("max_tokens", 0),
        ("lowest", 1.0), ("attempts", 0), ("attempt_seconds", 0.0), ("pause_seconds", math.inf),
    ],
)  # fmt: skip
def test_values_of_a_judge(field, value):
    with pytest.raises(ValueError, match="must be"):
        JudgeConfig(**{"url": "http://host", "model": "m", field: value})
