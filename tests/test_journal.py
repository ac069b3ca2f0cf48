"""What a run writes down adds up."""

import json

import numpy as np
import pytest

from headrace.envs import Message, Task, ToolCall
from headrace.pipeline.algorithms.advantages import estimator, group_relative
from headrace.pipeline.algorithms.config import AlgorithmConfig
from headrace.pipeline.algorithms.presets import PRESETS
from headrace.pipeline.controller import Controller, Stages, Update
from headrace.pipeline.evaluate import Evaluation
from headrace.pipeline.groups.batching import form_batch
from headrace.pipeline.groups.schedule import Schedule
from headrace.pipeline.journal import Journal, Totals
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.rollout.episode import Rollout
from headrace.pipeline.types import (
    NO_VERSION,
    SamplerLoad,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
)


class Seen:
    """A view and a sink that keep all they get."""

    def __init__(self):
        self.records = []
        self.notes = []

    def note(self, text):
        self.notes.append(text)

    def step(self, record):
        self.records.append(record)

    def write(self, record):
        self.records.append(record)


CALL = ToolCall("add", {"a": 1, "b": 2}, raw="add(1, 2)")


def trajectory(reward, version):
    return Trajectory(
        tokens=np.array([4, 5, 6], np.int32),
        loss_mask=np.array([False, True, True]),
        rollout_logprobs=np.zeros(3, np.float32),
        policy_versions=np.array([NO_VERSION, version, version], np.int32),
        turns=(Turn(1, 3),),
        rewards={"env": reward},
        reward=reward,
        stop_reason=StopReason.TERMINATED,
        info={"success": reward},
        messages=(Message("user", "1+2"), Message("assistant", "3", (CALL,), "easy")),
    )


def update(batch, rewards, version):
    group = TrajectoryGroup(7, Task("t"), tuple(trajectory(r, version) for r in rewards))
    _, statistics = form_batch([group], group_relative, batch=batch, group_size=2, shape=(1, 1, 8))
    return Update(batch, [group], statistics, {"loss": 0.5})


def journal_of(algorithm):
    seen = {"view": Seen(), "metrics": Seen(), "trajectories": Seen()}
    tokens = iter(range(100, 10_000, 100))
    journal = Journal(
        seen["view"],
        seen["metrics"],
        seen["trajectories"],
        algorithm=algorithm,
        read_totals=lambda: Totals(next(tokens), 0.0, 0.0),
    )
    return journal, seen


@pytest.fixture
def journal_and_seen():
    return journal_of(AlgorithmConfig())


def controller():
    rollout = Rollout(None, None, None, RolloutConfig())
    stages = Stages(
        tasks=None,
        rollout=rollout,
        pack=None,
        learner=None,
        publish=None,
        hold=None,
        load=lambda: SamplerLoad(rows=4, rows_busy=0, waiting=0),
    )
    return Controller(stages, Schedule(), steps=2, seed=0, on_update=print)


def test_records_trajectories_and_summary(journal_and_seen):
    journal, seen = journal_and_seen
    run = controller()
    run.flight.trajectories = 5  # one more than reached an update
    with journal.phase(run):
        journal.record(update(0, [0.0, 1.0], 0), run)
        journal.record(update(1, [1.0, 1.0], 0), run)
    summary = journal.summary()

    assert [record["step"] for record in seen["metrics"].records] == [1, 2]
    assert seen["view"].records == seen["metrics"].records
    assert seen["metrics"].records[1]["lag_max"] == 1
    assert seen["metrics"].records[0]["loss"] == 0.5
    lines = seen["trajectories"].records
    assert len(lines) == summary["trained_trajectories"] == 4
    assert json.loads(json.dumps(lines[3])) == {
        "step": 2, "group": 7, "member": 1, "task": "t", "reward": 1.0, "rewards": {"env": 1.0},
        "info": {"success": 1.0}, "stop_reason": "terminated", "policy_versions": [0, 0], "lag": 1,
        "tokens": 3, "sampled_tokens": 2, "samples": 1, "seconds": 0.0, "turns": [[2, 0, 0.0]],
        "messages": [
            {"role": "user", "content": "1+2"},
            {
                "role": "assistant", "content": "3", "reasoning": "easy",
                "tool_calls": [{"name": "add", "status": "ok", "raw": "add(1, 2)"}],
            },
        ],
    }  # fmt: skip
    assert (summary["reward_first"], summary["reward_last"]) == (0.5, 1.0)
    assert summary["trajectories"] == 5
    useful = summary["useful_trajectories_per_hour"] / summary["trajectories_per_hour"]
    assert useful == pytest.approx(2 / 5)  # the second group's rewards are all equal
    assert summary["generated_tokens"] > 0
    assert summary["lag"] == {"mean": 0.0, "max": 0, "bound": 4, "mean_bound": 1}


@pytest.mark.parametrize(
    ("preset", "flat", "alarms"), [("grpo", 1.0, 1), ("reinforce", 0.0, 0), ("ppo", None, 0)]
)
def test_what_is_flat_or_alone_depends_on_the_algorithm(preset, flat, alarms):
    """One member with reward 1, which a comparison turns into an advantage of 0."""
    algorithm = PRESETS[preset]
    group = TrajectoryGroup(7, Task("t"), (trajectory(1.0, 0),))
    advantage = estimator(algorithm.advantage)
    _, statistics = form_batch([group], advantage, batch=0, group_size=1, shape=(1, 1, 8))
    journal, seen = journal_of(algorithm)
    run = controller()
    with journal.phase(run):
        journal.record(Update(0, [group], statistics, {}), run)
    (record,) = seen["metrics"].records
    assert (record.get("flat_share"), record["alarms"]) == (flat, alarms)
    assert record.get("useful_share") == (None if flat is None else 1 - flat)
    useful = journal.summary()["useful_trajectories_per_hour"]
    assert (useful > 0) == (flat != 1.0)


def test_turns_tell_sampled_and_observed_tokens_and_the_environments_seconds(journal_and_seen):
    journal, seen = journal_and_seen
    versions = [NO_VERSION, NO_VERSION, 0, 0, 0, NO_VERSION, NO_VERSION, 1, NO_VERSION]
    mask = np.array(versions) != NO_VERSION
    two_turns = Trajectory(
        tokens=np.arange(9, dtype=np.int32),
        loss_mask=mask,
        rollout_logprobs=np.zeros(9, np.float32),
        policy_versions=np.array(versions, np.int32),
        turns=(Turn(2, 5, 1.0, 0.25), Turn(7, 8, 2.0, 0.123456)),
        rewards={},
        reward=0.0,
        stop_reason=StopReason.TERMINATED,
    )
    group = TrajectoryGroup(0, Task("t"), (two_turns, two_turns))
    _, statistics = form_batch([group], group_relative, batch=1, group_size=2, shape=(1, 1, 32))
    run = controller()
    with journal.phase(run):
        journal.record(Update(1, [group], statistics, {}), run)
    assert seen["trajectories"].records[0]["turns"] == [[3, 2, 0.25], [1, 1, 0.1235]]


def test_what_happens_after_the_phase_does_not_count(journal_and_seen):
    journal, _ = journal_and_seen
    with journal.phase(controller()):
        pass
    assert journal.summary() == journal.summary()  # though totals and clock go on


def test_the_summary_of_a_run_that_never_got_to_learning_has_the_same_keys(journal_and_seen):
    journal, _ = journal_and_seen
    before = journal.summary()
    with journal.phase(controller()):
        pass
    assert set(before) == set(journal.summary())
    assert before["trajectories"] == before["generated_tokens"] == before["rl_seconds"] == 0
    assert before["eval_before"] is None


def test_evaluations_have_the_same_names_and_null_where_no_episode_ended(journal_and_seen):
    journal, seen = journal_and_seen
    journal.evaluated("before", Evaluation(3, {}, {"reward": 0.5, "success": 0.5}))
    journal.evaluated("after", Evaluation(2, {"env_error": 1}, {"reward": 1.0, "tool_used": 1.0}))
    summary = journal.summary()
    assert summary["eval_before"]["tool_used"] == 0.0
    assert summary["eval_after"] == {
        "reward": 1.0, "success": 0.0, "tool_used": 1.0, "episodes": 2,
        "failures": {"env_error": 1},
    }  # fmt: skip
    journal.evaluated("after", Evaluation(0, {"env_error": 3}))
    assert journal.summary()["eval_after"]["success"] is None
    assert "3 failed" in seen["view"].notes[-1]
