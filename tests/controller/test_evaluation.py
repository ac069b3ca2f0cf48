"""An evaluation during training: of one version, on the same sampler, in nobody's way."""

from dataclasses import replace

import pytest
import trio

from headrace.envs import Task
from headrace.pipeline.evaluate import EvaluateConfig, evaluate, for_evaluation
from headrace.pipeline.groups.schedule import Schedule
from tests.controller.harness import Run, check_laws, failure_of
from tests.fakes.env import Books, FakeEnv, nothing
from tests.fakes.policy import FakePolicy

CONFIG = EvaluateConfig(tasks=6, max_episodes=2, deadline_seconds=60.0, temperature=0.25)


class Evaluated(Run):
    """A run with evaluations, which have environments of their own."""

    def __init__(self, *, evaluation_hook=nothing, evaluate_every=1, steps=12, **more):
        super().__init__(evaluate_every=evaluate_every, steps=steps, **more)
        self.evaluation_hook = evaluation_hook
        self.evaluation_books = Books()
        self.found = []
        self.times = []
        self.replace(evaluate=self.evaluate)

    async def evaluate(self, version, flight):
        began = trio.current_time()
        rollout = replace(self.stages.rollout, make_env=self.make_evaluation_env)
        found = await evaluate(
            for_evaluation(rollout, CONFIG, training=True),
            [Task(str(number)) for number in range(CONFIG.tasks)],
            seed=0,
            deadline_seconds=CONFIG.deadline_seconds,
            version=version,
            flight=flight,
        )
        self.found.append((version, found))
        self.times.append((began, trio.current_time()))

    def make_evaluation_env(self):
        return FakeEnv(self.evaluation_books, "1", self.evaluation_hook, self.reward)

    def check_nothing_is_left(self):
        super().check_nothing_is_left()
        assert self.evaluation_books.balanced

    @property
    def measuring(self):
        """The requests of evaluations."""
        return [request for request in self.policy.requests if request.priority < 0]


async def slowly(call, task, step):
    if call == "step":
        await trio.sleep(5.0)


@pytest.mark.parametrize("deterministic", [False, True])
def test_all_its_tokens_are_of_one_version_though_others_are_published_meanwhile(deterministic):
    schedule = Schedule(batch_groups=2, max_mean_lag=1, max_lag=3, deterministic=deterministic)
    run = Evaluated(evaluation_hook=slowly, schedule=schedule).go()
    check_laws(run)
    versions = [version for version, _ in run.found]
    assert versions[0] == 1
    assert {request.version for request in run.measuring} == set(versions)
    published = dict(zip(run.policy.versions, run.policy.published_at, strict=True))
    began, ended = run.times[0]
    assert sum(began < at < ended for at in published.values()) >= 3
    assert all(found.episodes == CONFIG.tasks for _, found in run.found)


def test_it_has_its_own_temperature_and_is_served_first():
    run = Evaluated(policy=FakePolicy(rows=1)).go()
    assert {request.temperature for request in run.measuring} == {0.25}
    training = [request for request in run.policy.requests if request.priority >= 0]
    assert {request.temperature for request in training} == {1.0}
    assert run.measuring


def test_there_is_at_most_one_at_a_time_and_those_that_fall_due_meanwhile_are_left_out():
    run = Evaluated(evaluation_hook=slowly, steps=40).go()
    assert len(run.found) >= 2
    for (_, ended), (began, _) in zip(run.times, run.times[1:], strict=False):
        assert ended <= began
    assert len(run.found) < run.steps - 1


@pytest.mark.parametrize(
    ("every", "steps", "versions"),
    [(1, 4, [1, 2, 3]), (2, 7, [2, 4, 6]), (3, 6, [3]), (5, 5, []), (0, 4, [])],
)
def test_it_is_due_after_so_many_updates_but_not_after_the_last(every, steps, versions):
    policy = FakePolicy(update_seconds=30.0)
    run = Evaluated(policy=policy, evaluate_every=every, steps=steps).go()
    assert [version for version, _ in run.found] == versions


def test_it_measures_what_is_published_where_that_is_older_than_the_last_update():
    schedule = Schedule(batch_groups=2, max_mean_lag=2, max_lag=4, publish_every=3)
    policy = FakePolicy(update_seconds=30.0)
    run = Evaluated(policy=policy, schedule=schedule, evaluate_every=2, steps=7).go()
    assert [version for version, _ in run.found] == [0, 3, 6]


def test_conformance_6_an_evaluation_that_hangs_ends_at_its_deadline_and_training_goes_on():
    async def hang(call, task, step):
        if call == "step":
            await trio.sleep(45.0)

    run = Evaluated(evaluation_hook=hang, steps=60)
    run.set_rollout(env_deadline_seconds=1000.0).go()
    check_laws(run)
    version, found = run.found[0]
    assert (version, found.episodes, found.failures) == (1, 0, {"cancelled": 6})
    assert all(ended - began <= 60.0 for began, ended in run.times)
    during = [at for at in run.policy.published_at if run.times[0][0] < at < run.times[0][1]]
    assert len(during) > 15


def test_training_is_not_stopped_or_slowed_by_it():
    def seconds(**more):
        return Evaluated(evaluation_hook=slowly, steps=40, **more).go().seconds

    assert seconds() <= seconds(evaluate_every=0) + 30.0  # the last one ends after the last step


def test_the_last_one_ends_before_the_run_does():
    run = Evaluated(evaluation_hook=slowly, evaluate_every=3, steps=4).go()
    ((_, ended),) = run.times
    assert ended > run.policy.published_at[-1]
    assert run.seconds >= ended


def test_its_episodes_that_fail_are_counted_apart_from_those_of_training():
    async def fail(call, task, step):
        if call == "reset" and task.id in ("1", "4"):
            raise OSError("no such host")

    run = Evaluated(evaluation_hook=fail, evaluate_every=2, steps=3).go()
    ((_, found),) = run.found
    assert found.failures == {"env_error": 2}
    assert run.controller.evaluations.flight.failures == {"env_error": 2}
    assert run.controller.flight.failures == {}


def test_an_evaluation_that_fails_ends_the_run_with_its_name():
    async def broken(version, flight):
        await trio.sleep(2.0)
        raise OSError("disk full")

    failure = failure_of(Evaluated().replace(evaluate=broken))
    assert failure.stage == "evaluate"
    assert "disk full" in str(failure)


def test_a_stop_during_an_evaluation_leaves_nothing():
    async def stop(run, nursery):
        await trio.sleep(12.0)
        assert run.controller.evaluations.flight.episodes == 2
        nursery.cancel_scope.cancel()

    run = Evaluated(evaluation_hook=slowly, steps=100).go(beside=stop)
    assert run.found == []
