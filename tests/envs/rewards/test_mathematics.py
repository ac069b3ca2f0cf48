"""Math-Verify, the real package, in worker processes."""

from dataclasses import replace

import pytest
import trio

from headrace.envs import EpisodeRecord, Message, Reward, Task
from headrace.envs.rewards import RewardFailed, Scorer

pytest.importorskip("math_verify")

from headrace.envs.rewards.mathematics import CORRECT, math_answer


def episode(right, answer):
    return EpisodeRecord(Task("t", {"answer": right}), (Message("assistant", answer),))


@pytest.mark.parametrize(
    ("right", "answer", "score"),
    [
        ("42", "so it is \\boxed{42}", 1.0), (42, "the answer is 42", 1.0),
        ("1/2", "\\boxed{0.5}", 1.0), ("\\sqrt{8}", "$2\\sqrt{2}$", 1.0),
        ("(1,2]", "$(1,2]$", 1.0), ("42", "\\boxed{43}", 0.0), ("42", "", 0.0),
        ("42", "\\boxed{\\frac{1}{", 0.0), ("42", "\\boxed{1/0}", 0.0), ("", "42", None),
    ],
)  # fmt: skip
def test_answers_are_compared_as_mathematics(right, answer, score):
    assert math_answer(episode(right, answer)) == score


@pytest.mark.slow
def test_an_answer_that_hangs_is_no_score_and_others_are_scored_meanwhile():
    async def main():
        scorer = Scorer([Reward("math", math_answer, deadline_seconds=3.0, concurrency=2)])
        failures = []

        async def hang(answer):
            with pytest.raises(RewardFailed) as caught:
                await scorer.score(episode("42", answer))
            failures.append(caught.value)

        async with trio.open_nursery() as nursery:
            for answer in ("$9^{9^{9^{9}}}$", "$123456789!$"):
                nursery.start_soon(hang, answer)
            await trio.sleep(0.1)
            assert (await scorer.score(episode("42", "42")))["math"] == 1.0
        scores = await Scorer([replace(CORRECT, deadline_seconds=3.0)]).score(
            episode("42", "$9^{9^{9^{9}}}$")
        )
        assert scores["correct"] == 0.0  # else a policy could have hard tasks drawn again
        assert all(failure.timed_out for failure in failures)
        assert {str(failure) for failure in failures} == {
            "the reward 'math' couldn't be computed: took more than 3 s"
        }

    trio.run(main)
