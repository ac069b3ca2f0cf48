"""The laws of a run, found by looking at what came out: nothing here asks the ledger how."""

from collections import Counter

import numpy as np
import trio
from hypothesis import strategies as st

from headrace.pipeline.errors import StageFailed
from tests.controller.harness import leaves
from tests.controller.schedules import DEADLINE, EVALUATE, FATAL, DrawnRun, Planned


def run_to_its_end(data, *, deterministic):
    """Draw a run and check all of it."""
    run = DrawnRun(data, deterministic=deterministic)
    run.go(deadline_seconds=DEADLINE)
    check_whole(run)


def run_until_a_stage_fails(data):
    """Draw a run and when a stage fails; check the error, and what there is of the run."""
    run = DrawnRun(data, deterministic=data.draw(st.booleans(), label="deterministic"))
    call = data.draw(st.sampled_from(sorted(FATAL)), label="what fails")
    run.plan.fatal = (call, data.draw(st.integers(0, 4), label="after so many"))
    try:
        run.go(deadline_seconds=DEADLINE)
    except BaseExceptionGroup as error:
        (failure,) = leaves(error)
        assert isinstance(failure, StageFailed)
        assert failure.stage == FATAL[call]
        assert isinstance(failure.__cause__, Planned)
        check(run)
    else:
        check_whole(run)


def run_until_cancelled(data):
    """Draw a run, cancel it at a drawn time, and check what there is of it."""
    run = DrawnRun(data, deterministic=data.draw(st.booleans(), label="deterministic"))
    at = data.draw(st.integers(0, 1500), label="cancelled after tenths of a second") / 10
    try:
        run.go(deadline_seconds=at + 1e-3)
    except trio.TooSlowError:
        check(run)
    else:
        check_whole(run)


def check_whole(run: DrawnRun):
    """Check a run that was to make all its updates."""
    check(run)
    made = [update.batch for update in run.updates]
    if run.schedule.deterministic:
        assert set(range(run.steps)) - set(made) == empty_batches(run)
    else:
        assert made == list(range(run.steps))
    assert run.policy.version == run.steps
    assert all(evaluation.found is not None for evaluation in run.evaluations)


def check(run: DrawnRun):
    """Check what must hold however the run ended."""
    check_closed(run)
    check_conservation(run)
    check_admission(run)
    check_updates(run)
    check_evaluations(run)


def check_updates(run: DrawnRun):
    """Check what must hold of the updates made so far."""
    check_groups(run)
    check_lags(run)
    check_publishes(run)


def check_closed(run):
    """Law 16."""
    run.check_nothing_is_left()
    assert not run.policy.wrong_versions
    assert run.evaluation_books.balanced
    assert run.evaluation_books.had_time_to_close(run.rollout.close_deadline_seconds)
    assert not any(evaluation.running for evaluation in run.evaluations)


def check_conservation(run):
    """Law 3: each task is used once or dropped with a reason; each group is in one place."""
    used = Counter(group.task.id for group in run.groups)
    assert set(used.values()) <= {1}
    assert set(used) <= {str(number) for number in range(run.stages.tasks.given)}
    assert len({group.index for group in run.groups}) == len(run.groups)
    counts, dropped = run.counts, sum(run.counts.dropped.values())
    assert counts.admitted == counts.consumed + counts.in_batch + dropped
    late = len(run.groups) - counts.consumed  # a batch whose update was cut short
    assert -run.schedule.batch_groups <= late <= 0
    assert set(dropped_for(run)) <= expected_reasons(run)


def check_admission(run):
    """Each task is admitted once, and once more for each refund; the gate keeps its bound."""
    counts, schedule = run.counts, run.schedule
    waiting = len(run.controller._outstanding.again)
    assert counts.admitted == run.stages.tasks.given + counts.reissued - waiting
    if not schedule.deterministic:
        outstanding = counts.admitted - sum(counts.dropped.values()) - sum(run.packed)
        ahead = run.policy.version + schedule.max_mean_lag + 1 - len(run.packed)
        assert outstanding <= ahead * schedule.batch_groups


def dropped_for(run):
    return [reason for reason, number in run.counts.dropped.items() if number]


def expected_reasons(run):
    failures = {"env_error", "env_timeout", "sampler_error", "sampler_timeout"}
    age = set() if run.schedule.deterministic else {"over_age"}
    equal = {"equal_rewards"} if run.schedule.equal_rewards == "drop" else set()
    return failures | age | equal | {"run_ended"}


def check_groups(run):
    """Law 6: whole by the stated rule, none twice, none of equal rewards if those are dropped."""
    config = run.stages.rollout.config
    least = config.min_group_size if config.failure == "survivors" else config.group_size
    everything = [id(trajectory) for group in run.groups for trajectory in group.trajectories]
    assert len(set(everything)) == len(everything)
    for group in run.groups:
        assert least <= len(group.trajectories) <= config.group_size
        if run.schedule.equal_rewards == "drop":
            assert len({trajectory.reward for trajectory in group.trajectories}) > 1
    for update in run.updates:
        size = len(update.groups)
        assert size == run.schedule.batch_groups or run.schedule.deterministic


def versions(group):
    """The versions of all sampled tokens of a group."""
    return np.concatenate([t.policy_versions[t.loss_mask] for t in group.trajectories])


def check_lags(run):
    """Law 4, from the tokens alone."""
    if run.schedule.deterministic:
        check_lockstep(run)
    else:
        check_bounded(run)


def check_bounded(run):
    total = 0
    for number, update in enumerate(run.updates):
        lags = [number - int(versions(group).min()) for group in update.groups]
        assert min(number - versions(group).max() for group in update.groups) >= 0
        if run.schedule.over_age == "mask":
            check_mask(run, update)
            lags = [min(lag, run.schedule.max_lag) for lag in lags]
        assert max(lags) <= run.schedule.max_lag
        total += sum(lags)
        assert total <= run.schedule.max_mean_lag * run.schedule.batch_groups * number


def check_mask(run, update):
    """No token over max_lag is trained, and each group has one that is."""
    trained = [
        int((versions(group) >= update.batch - run.schedule.max_lag).sum())
        for group in update.groups
    ]
    assert min(trained) >= 1
    assert update.statistics.sampled_tokens == sum(trained)


def check_lockstep(run):
    """Group n is in batch n // B, wholly of version w(n); no group is too old, none is late."""
    size = run.schedule.batch_groups
    for update in run.updates:
        indexes = [group.index for group in update.groups]
        assert indexes == sorted(indexes)
        for group in update.groups:
            assert group.index // size == update.batch
            assert group.task.id == str(group.index)
            assert set(versions(group).tolist()) == {wanted_version(run, update.batch)}


def wanted_version(run, batch):
    """The first multiple of m from max(0, b - eta) on."""
    version = max(0, batch - run.schedule.max_mean_lag)
    while version % run.schedule.publish_every:
        version += 1
    return version


def empty_batches(run):
    """The batches of lockstep that never came to an update, since all their groups failed."""
    size = run.schedule.batch_groups
    used = {group.index // size for group in run.groups}
    return set(range(run.steps)) - used


def check_publishes(run):
    """Each multiple of m in turn, and the last version; none before its update."""
    published, every = run.policy.versions, run.schedule.publish_every
    assert published == sorted(set(published))
    in_order = list(range(0, run.steps + 1, every))
    assert published in (in_order[: len(published)], [*in_order, run.steps])
    assert published[-1] <= run.controller.ledger.committed <= run.steps


def check_evaluations(run):
    """Each is of one version, with its own temperature, and served first."""
    measured = [request for request in run.policy.requests if request.priority < 0]
    assert {request.version for request in measured} <= {e.version for e in run.evaluations}
    assert {request.temperature for request in measured} <= {EVALUATE.temperature}
    others = [request for request in run.policy.requests if request.priority >= 0]
    assert {request.temperature for request in others} <= {run.stages.rollout.config.temperature}
    for evaluation in run.evaluations:
        assert evaluation.version in run.policy.versions
        if evaluation.found is not None:
            failures = sum(evaluation.found.failures.values())
            assert evaluation.found.episodes + failures == EVALUATE.tasks
