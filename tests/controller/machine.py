"""The controller as a state machine: a test says of each call when and how it returns.

Laws 3 to 6 and 16, at each moment at which nothing happens by itself. The drawn schedules
(`test_schedules`) draw how long each call takes; here a call waits until a rule answers it. So a
run that waits for nothing is stuck for sure, and a failure shrinks to a few rules.
"""

import outcome
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from headrace.pipeline.errors import StageFailed
from headrace.pipeline.waits import DeadlineMissed
from tests.controller import oracle
from tests.controller.calls import CALLS, FAULTS, Calls
from tests.controller.guest import Guest
from tests.controller.harness import leaves
from tests.controller.schedules import FATAL, DrawnRun, Planned

ROUNDS = st.sampled_from([20, 1, 3, 60])
SECONDS = st.sampled_from([0.01, 0.01, 0.1, 1.0])
MANNERS = st.sampled_from(["return", "hold", "hold", *FAULTS])
LOCKSTEP = st.sampled_from([False, False, True])
PICK = st.integers(0, 99)
MOST_ROUNDS = 3000  # of answers to all that waits, until a run must have ended


class ControllerMachine(RuleBasedStateMachine):
    """One run of the controller; each rule lets something happen to it."""

    @initialize(data=st.data(), order=st.random_module(), deterministic=LOCKSTEP)
    def start(self, data, order, deterministic):
        self.calls = Calls()
        self.run = DrawnRun(data, deterministic=deterministic, plan=self.calls)
        self.guest = Guest(self.run.main)
        self.cancelled = False
        self.guest.settle()

    @rule(rounds=ROUNDS, seconds=SECONDS, name=st.sampled_from(CALLS), manner=MANNERS)
    def calls_return(self, rounds, seconds, name, manner):
        """All that aren't held, in rounds that take so long; the next of a name is special."""
        self.calls.planned[name] = manner
        self.go_on(rounds, seconds)

    @precondition(lambda self: self.calls.waiting)
    @rule(pick=PICK)
    def one_call_returns(self, pick):
        self.pick(pick).answer()
        self.guest.settle()

    @precondition(lambda self: self.calls.waiting)
    @rule(pick=PICK, rounds=ROUNDS)
    def one_call_takes_longer(self, pick, rounds):
        """So long that what depends on it may become too old."""
        self.calls.hold(self.pick(pick))
        self.go_on(rounds, 0.01)

    @rule(name=st.sampled_from(sorted(FATAL)), often=PICK)
    def the_next_update_or_publish_fails(self, name, often):
        if often < 10:  # a fault of a stage ends the run
            self.calls.planned[name] = "raise"

    @precondition(lambda self: self.calls.waiting)
    @rule(pick=PICK, often=PICK)
    def a_call_returns_at_a_deadline(self, pick, often):
        if often < 20:  # not often, since most calls miss theirs with it
            self.pick(pick).answer()
            self.guest.pass_time_to_deadline()

    @precondition(lambda self: self.run.updates)
    @rule(often=PICK)
    def the_run_is_cancelled(self, often):
        if often < 3:
            self.cancelled = True
            self.guest.cancel()

    @invariant()
    def is_not_stuck(self):
        """Law 5, and that of admission: a run that isn't over waits for a call to return."""
        assert self.guest.over or self.calls.waiting, self.run.controller.describe(0.0)
        oracle.check_admission(self.run)

    @invariant()
    def keeps_its_bounds(self):
        """Laws 4 and 6."""
        oracle.check_updates(self.run)

    def teardown(self):
        """Let all calls return: the run must end by itself, and whole if no fault is fatal."""
        try:
            self.come_to_the_end()
        finally:
            self.guest.cancel()
            self.calls.answer_all(held=True)
            self.guest.settle()
        self.check_the_end()

    def go_on(self, rounds, seconds):
        for _ in range(rounds):
            self.calls.answer_all()
            self.guest.pass_time(seconds)
            self.is_not_stuck()

    def pick(self, number):
        return self.calls.waiting[number % len(self.calls.waiting)]

    def come_to_the_end(self):
        self.calls.planned.clear()
        for _ in range(MOST_ROUNDS):
            if self.guest.over:
                return
            self.calls.answer_all(held=True)
            self.guest.settle()
            self.is_not_stuck()
        raise AssertionError(self.run.controller.describe(0.0))

    def check_the_end(self):
        match self.guest.outcome:
            case outcome.Error(error=BaseExceptionGroup() as error):
                self.check_failure(error)
                oracle.check(self.run)
            case outcome.Error(error=error):
                raise error
            case _ if self.cancelled:
                oracle.check(self.run)
            case _:
                oracle.check_whole(self.run)

    def check_failure(self, error):
        """Of the stages that a call has failed or was late for, and of no other."""
        for failure in leaves(error):
            if not isinstance(failure, StageFailed):
                raise error
            assert failure.stage in self.calls.may_fail()
            assert isinstance(failure.__cause__, (Planned, DeadlineMissed))
