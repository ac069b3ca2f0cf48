"""Groups, failures, tools: what can't be had is a typed outcome, and nobody waits for it."""

from headrace.envs import Message, Reward, StepResult, Task, in_threads
from tests.controller.harness import check_laws
from tests.controller.test_hostile import Quiet, go, world_of
from tests.fakes import reward_functions

DEADLINE_SECONDS = 0.5


def test_conformance_24_rewards_that_sleep_for_ever_or_use_signals_hold_up_nobody():
    """Both in a few calls of worker processes; the run goes on, and has no score of 0 for them."""
    function = reward_functions.hangs_or_times_itself_out_at_times
    reward = Reward("mine", function, deadline_seconds=DEADLINE_SECONDS, concurrency=2)
    world = world_of(Quiet, deadline_seconds=20.0, rewards=[reward], steps=10)
    go(world, failures=4)
    check_laws(world)
    assert world.controller.flight.failures.keys() == {"reward_timeout", "reward_error"}
    trajectories = [each for group in world.groups for each in group.trajectories]
    assert all(each.rewards["mine"] > 1 for each in trajectories)


class Alarmed:
    """A synchronous environment whose checker sets an alarm in every eighth episode."""

    episodes = 0

    def __enter__(self):
        type(self).episodes += 1
        self.alarmed = self.episodes % 8 == 2
        return self

    def __exit__(self, *error): ...

    def reset(self, task: Task, seed: int) -> list[Message]:
        return [Message("user", "0")]

    def step(self, message: Message) -> StepResult:
        if self.alarmed:
            reward_functions.times_itself_out(None)
        return StepResult(reward=1.0, terminated=True)


def test_conformance_24_a_checker_that_uses_signals_in_a_thread_fails_its_episode_alone():
    """Python allows signals in the main thread only: an error, and no environment that hangs."""
    Alarmed.episodes = 0
    world = world_of(in_threads(Alarmed), deadline_seconds=5.0)
    go(world, failures=4)
    check_laws(world)
    assert world.controller.flight.failures.keys() == {"env_error"}
