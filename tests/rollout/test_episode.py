"""An episode's outcome is a value, its tokens are exact, its environment is closed."""

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs import Message, StepResult, Task
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.rollout.episode import Episode, EpisodeIdentity, Rollout, run_episode
from headrace.pipeline.sampling import Sampling
from headrace.pipeline.text.renderer import CharacterRenderer, TextConfig
from headrace.pipeline.types import (
    Completion,
    EpisodeFailure,
    FailureKind,
    FinishReason,
    StopReason,
    Trajectory,
)
from tests.fakes.env import Books, FakeEnv, nothing

RENDERER = CharacterRenderer(TextConfig("0123456789"))
END = RENDERER.stop_ids[0]
TASK = Task("t", {"text": "12"})
IDENTITY = EpisodeIdentity(key=(1, 2), env_seed=3)


class Script:
    """A sampler that says the given turns, cut to each request's budget."""

    def __init__(self, *turns: list[int], seconds: float = 0.0):
        self._turns = list(turns)
        self._seconds = seconds
        self.requests = []

    async def __call__(self, request):
        await trio.sleep(self._seconds)
        self.requests.append(request)
        turn = self._turns[(len(self.requests) - 1) % len(self._turns)]
        tokens = np.array(turn[: request.max_tokens], np.int32)
        finish = FinishReason.STOP if tokens[-1] in request.stop_ids else FinishReason.LENGTH
        versions = np.full(len(tokens), len(self.requests), np.int32)
        return Completion(tokens, np.full(len(tokens), -1, np.float32), versions, finish)


def turn(text: str) -> list[int]:
    return RENDERER.turn(Message("assistant", text))


def run(sample, books=None, *, env=None, config=None, task=TASK):
    books = Books() if books is None else books
    rollout = Rollout(
        make_env=lambda: FakeEnv(books, **(env or {})),
        renderer=RENDERER,
        sample=sample,
        config=config or RolloutConfig(max_turns=5, max_tokens=64),
    )

    async def main():
        return await run_episode(rollout, task, IDENTITY)

    outcome = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert books.balanced
    return outcome


def text(trajectory: Trajectory) -> str:
    return RENDERER.text(trajectory.tokens.tolist())


def test_every_request_asks_for_the_cuts_of_the_rollout():
    sample = Script(turn("7"), turn("8"))
    run(sample, config=RolloutConfig(max_tokens=64, top_k=5, top_p=0.9, min_p=0.01))
    asked = [request.sampling for request in sample.requests]
    assert asked == [Sampling(top_k=5, top_p=0.9, min_p=0.01)] * len(asked)
    assert len(asked) == 2


def test_a_whole_episode_token_by_token():
    sample = Script(turn("7"), turn("89"), turn("6"))
    outcome = run(sample, env={"replies": ("5", "44")})
    assert text(outcome) == (
        "<user>12<assistant>7<end><tool>5<assistant>89<end><tool>44<assistant>6<end>"
    )
    assert outcome.stop_reason is StopReason.TERMINATED
    assert outcome.reward == 1.0
    assert outcome.info == {"success": 1.0}
    assert [message.role for message in outcome.messages] == [
        "user", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert [turn.end - turn.start for turn in outcome.turns] == [2, 3, 2]


@given(
    turns=st.lists(
        st.lists(st.integers(0, RENDERER.vocab_size - 1), min_size=1, max_size=8),
        min_size=1,
        max_size=4,
    ),
    replies=st.lists(st.text("0123456789x", max_size=4), max_size=5),
    max_tokens=st.integers(5, 40),
)
def test_law_1_and_2_for_whatever_is_sampled(turns, replies, max_tokens):
    """Random ids, special ones and unclosed turns included: laws 1 and 2 hold bit for bit."""
    sample = Script(*turns)
    config = RolloutConfig(max_turns=4, max_turn_tokens=6, max_tokens=max_tokens)
    outcome = run(sample, env={"replies": replies}, config=config)
    assert isinstance(outcome, Trajectory)
    assert len(outcome.tokens) <= max_tokens
    for number, request in enumerate(sample.requests):
        span = outcome.turns[number]
        np.testing.assert_array_equal(request.tokens, outcome.tokens[: span.start])
        sampled = turns[number % len(turns)][: request.max_tokens]
        assert outcome.tokens[span.start : span.end].tolist() == sampled
        assert (outcome.policy_versions[span.start : span.end] == number + 1).all()
    assert outcome.loss_mask.sum() == sum(turn.end - turn.start for turn in outcome.turns)


def test_why_an_episode_is_cut():
    closed, open_ = turn("1"), turn("1")[:-1]
    few = RolloutConfig(max_turns=2, max_turn_tokens=3, max_tokens=64)
    assert run(Script(closed), env={"replies": "123"}, config=few).stop_reason == "max_turns"
    assert run(Script(open_), config=few).stop_reason == "max_turn_tokens"
    small = RolloutConfig(max_turns=9, max_turn_tokens=9, max_tokens=8)
    assert run(Script(closed), env={"replies": "1234"}, config=small).stop_reason == "max_tokens"
    assert run(Script([9] * 9), config=small).stop_reason == "max_tokens"


def test_an_episode_that_is_cut_keeps_what_was_measured_before():
    class Measuring(FakeEnv):
        async def step(self, message):
            result = await super().step(message)
            return StepResult(result.messages, reward=0.25, info={"tool_used": 1.0})

    books = Books()
    rollout = Rollout(
        lambda: Measuring(books, ("1", "2")),
        RENDERER,
        Script(turn("1"), [9] * 9),
        RolloutConfig(max_turns=3, max_turn_tokens=4, max_tokens=64),
    )
    outcome = trio.run(run_episode, rollout, TASK, IDENTITY)
    assert outcome.stop_reason is StopReason.MAX_TURN_TOKENS
    assert (outcome.info, outcome.reward) == ({"tool_used": 1.0}, 0.25)


def test_the_reply_to_the_last_turn_is_not_part_of_the_tokens():
    outcome = run(
        Script(turn("1")), env={"replies": "123"}, config=RolloutConfig(max_turns=1, max_tokens=64)
    )
    assert text(outcome) == "<user>12<assistant>1<end>"


def test_a_prompt_that_leaves_no_room_is_a_failure():
    outcome = run(Script(turn("1")), config=RolloutConfig(max_tokens=4))
    assert isinstance(outcome, EpisodeFailure)
    assert outcome.kind is FailureKind.OVERLONG
    assert "4 tokens" in outcome.error


@pytest.mark.parametrize("where", ["open", "reset", "step", "close"])
def test_conformance_25_an_environment_that_raises_is_closed_and_a_failure(where):
    async def hook(call, task, step):
        if call == where:
            raise OSError("no such host")

    outcome = run(Script(turn("1")), env={"hook": hook})
    assert isinstance(outcome, EpisodeFailure)
    assert outcome.kind is FailureKind.ENV_ERROR
    assert "no such host" in outcome.error
    assert where in outcome.error


@pytest.mark.parametrize("where", ["open", "reset", "step", "close"])
def test_conformance_2_an_environment_that_hangs_is_a_timeout(where):
    async def hook(call, task, step):
        if call == where:
            await trio.sleep_forever()

    outcome = run(Script(turn("1")), env={"hook": hook})
    assert isinstance(outcome, EpisodeFailure)
    assert outcome.kind is FailureKind.ENV_TIMEOUT


def test_a_sampler_that_raises_or_hangs_is_a_failure():
    async def broken(request):
        raise RuntimeError("row lost")

    async def hung(request):
        await trio.sleep_forever()

    assert run(broken).kind is FailureKind.SAMPLER_ERROR
    assert run(hung).kind is FailureKind.SAMPLER_TIMEOUT


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["open", "reset", "step", "close"])
def test_conformance_3_an_error_outside_exception_is_nobodys_outcome(error, where):
    async def hook(call, task, step):
        if call == where:
            raise error("the end")

    with pytest.raises(error):
        run(Script(turn("1")), env={"hook": hook})


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "done",
        StepResult((Message("assistant", "1"),)),
        StepResult((Message("nobody", "1"),)),
        StepResult(reward=float("nan")),
        StepResult(reward="1"),
        StepResult(info={"success": "yes"}),
        StepResult(terminated=True, info={"success": float("inf")}),
        StepResult(terminated=True, reward=float("nan"), info={"reward": 1.0}),
        StepResult(terminated=True, reward=1e30),
        StepResult(messages=None, terminated=True),
        StepResult(messages=("hello",), terminated=True),
        StepResult(messages=(Message("tool", 3),), terminated=True),
    ],
)
def test_a_malformed_answer_is_a_failure_of_the_environment(answer):
    class Malformed(FakeEnv):
        async def step(self, message):
            return answer

    books = Books()
    rollout = Rollout(
        lambda: Malformed(books), RENDERER, Script(turn("1")), RolloutConfig(max_tokens=64)
    )
    outcome = trio.run(run_episode, rollout, TASK, IDENTITY)
    assert isinstance(outcome, EpisodeFailure)
    assert outcome.kind is FailureKind.ENV_ERROR
    assert books.balanced


def test_an_error_that_cannot_be_printed_is_a_failure_too():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    async def hook(call, task, step):
        raise Mute

    assert "Mute" in run(Script(turn("1")), env={"hook": hook}).error


class Connected(FakeEnv):
    """Holds a nursery from opening to closing; notes when its connection ends before."""

    closing = False

    async def __aenter__(self):
        self.manager = trio.open_nursery()
        self.nursery = await self.manager.__aenter__()
        self.nursery.start_soon(self.connection)
        return await super().__aenter__()

    async def connection(self):
        try:
            await trio.sleep_forever()
        finally:
            if not self.closing:
                self.books.cut_short.append("connection")

    async def __aexit__(self, *_):
        await trio.lowlevel.cancel_shielded_checkpoint()  # to whoever was cancelled
        self.closing = True
        self.nursery.cancel_scope.cancel()
        await self.manager.__aexit__(None, None, None)
        await super().__aexit__(*_)


class Scoped(FakeEnv):
    """Holds a scope from opening to closing."""

    async def __aenter__(self):
        self.scope = trio.CancelScope()
        self.scope.__enter__()
        return await super().__aenter__()

    async def __aexit__(self, *_):
        await trio.lowlevel.checkpoint()
        self.scope.__exit__(None, None, None)
        await super().__aexit__(*_)


@pytest.mark.parametrize("env", [Connected, Scoped])
@pytest.mark.parametrize(
    "ends", ["well", "error", "timeout", "stopped", "cancelled", "hung close"]
)
def test_an_environment_may_hold_a_nursery_or_a_scope_from_opening_to_closing(ends, env):

    async def hook(call, task, step):
        if call == "close" and ends == "hung close":
            await trio.sleep_forever()
        if call == "step" and ends == "error":
            raise OSError("lost")
        if call == "step" and ends in ("timeout", "stopped", "cancelled"):
            await trio.sleep_forever()

    books = Books()
    rollout = Rollout(lambda: env(books, (), hook), RENDERER, Script(turn("1")), RolloutConfig())

    outcomes = []

    async def stop(episode):
        await trio.sleep(5.0)
        episode.stop("over_age")

    async def run_it(episode):
        with trio.move_on_after(5.0 if ends == "cancelled" else 1000.0):
            outcomes.append(await episode.run())
            await trio.lowlevel.checkpoint()

    async def main():
        episode = Episode(rollout, TASK, IDENTITY)
        async with trio.open_nursery() as nursery:
            if ends == "stopped":
                nursery.start_soon(stop, episode)
            nursery.start_soon(run_it, episode)  # a task that holds no nursery itself

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert books.balanced
    assert ends == "cancelled" or "connection" not in books.cut_short
    errors = {
        "error": "env_error: environment step: OSError: lost",
        "timeout": "env_timeout: environment step took more than 60.0 s",
        "stopped": "cancelled: environment step: over_age",
        "hung close": "env_timeout: environment close took more than 10.0 s",
    }
    if ends in errors:
        assert [f"{outcome.kind}: {outcome.error}" for outcome in outcomes] == [errors[ends]]
    else:
        assert len(outcomes) == (ends == "well")


def test_what_was_made_is_closed_whatever_opening_returned():
    class Forgetful(FakeEnv):
        async def __aenter__(self):
            await super().__aenter__()

    books = Books()
    rollout = Rollout(lambda: Forgetful(books), RENDERER, Script(turn("1")), RolloutConfig())
    outcome = trio.run(run_episode, rollout, TASK, IDENTITY)
    assert outcome.kind is FailureKind.ENV_ERROR
    assert books.opened == books.closed == 1


def test_a_deadline_that_meets_an_error_in_the_environments_own_nursery_is_a_timeout():
    async def child():
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("in the clean-up")

    async def hook(call, task, step):
        if call == "step":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child)
                nursery.start_soon(trio.sleep_forever)

    outcome = run(Script(turn("1")), env={"hook": hook})
    assert outcome.kind is FailureKind.ENV_TIMEOUT


def test_an_environment_that_fails_to_close_hides_neither_the_first_fault_nor_a_cancellation():
    async def hook(call, task, step):
        if call == "close":
            raise OSError("still in use")
        if call == "step":
            raise error

    error = SystemExit(3)
    with pytest.raises(SystemExit):
        run(Script(turn("1")), env={"hook": hook})
    error = OSError("the first")
    assert "the first" in run(Script(turn("1")), env={"hook": hook}).error


def test_law_16_cancelled_anywhere_the_environment_is_closed():
    """Cancel after every possible time of an episode of known length."""

    async def slow(call, task, step):
        await trio.sleep(1.0)

    async def main(seconds: float, books: Books):
        rollout = Rollout(
            lambda: FakeEnv(books, ("1", "2"), slow),
            RENDERER,
            Script(turn("1"), seconds=1.0),
            RolloutConfig(max_turns=5, max_tokens=64),
        )
        with trio.move_on_after(seconds) as scope:
            await run_episode(rollout, TASK, IDENTITY)
        return scope.cancelled_caught

    cancelled = 0
    for half_seconds in range(22):
        books = Books()
        clock = trio.testing.MockClock(autojump_threshold=0)
        cancelled += trio.run(main, half_seconds / 2 + 0.25, books, clock=clock)
        assert books.balanced
    assert cancelled == 16  # open, reset, three times sample and step: 8 s; closing is shielded


def test_timings_are_those_of_the_clock():
    async def slow(call, task, step):
        await trio.sleep(2.0 if call == "step" else 0.0)

    outcome = run(Script(turn("1"), seconds=0.5), env={"hook": slow})
    assert [turn.sample_seconds for turn in outcome.turns] == pytest.approx([0.5, 0.5])
    assert [turn.env_seconds for turn in outcome.turns] == pytest.approx([2.0, 2.0])
    assert outcome.seconds == pytest.approx(5.0)


def test_an_environment_without_a_script_waits_for_nothing():
    assert run(Script(turn("1")), env={"hook": nothing, "replies": ()}).reward == 1.0


def test_a_flood_ends_the_episode_and_is_not_read_by_the_tokenizer_or_kept():
    flood = "1" * 1_000_000
    outcome = run(Script(turn("7")), env={"replies": (flood,)})
    assert isinstance(outcome, Trajectory)
    assert outcome.stop_reason is StopReason.MAX_TOKENS
    assert outcome.messages[-1].content == f"{'1' * 1000}… (999000 more characters)"
    task = Task("t", {"text": flood})
    outcome = run(Script(turn("7")), task=task)
    assert isinstance(outcome, EpisodeFailure)
    assert outcome.kind is FailureKind.OVERLONG
    assert "a prompt of at least 64 tokens, which must be in 1..63" in outcome.error
