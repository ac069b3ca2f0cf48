"""Law 6: a group is used whole or not at all, by the stated rule."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.groups.ledger import (
    Collect,
    Decision,
    Drop,
    Ledger,
    MemberFailed,
    MemberRule,
    Retry,
    Schedule,
    advance,
    counts,
)
from headrace.pipeline.groups.members import ENDED, fail, is_late, succeed
from tests.groups.driving import admitted, done, feed

SIZE = 4
RETRY_TWICE = MemberRule(SIZE, "retry", max_retries=2)
SURVIVORS_3 = MemberRule(SIZE, "survivors", min_size=3)
DROP = MemberRule(SIZE, "drop")


@dataclass
class Played:
    """What a group's members did, and what was decided of it."""

    tries: list[int]
    decisions: list[Decision]
    ledger: Ledger

    @property
    def end(self) -> Decision | None:
        """How the group ended, or None."""
        ends = [d for d in self.decisions if not isinstance(d, Retry)]
        assert len(ends) <= 1
        return ends[0] if ends else None


def play(rule: MemberRule, failing_tries: dict[int, int]) -> Played:
    """Run all members in turns, one try each; a member fails for its first so many tries."""
    ledger, _ = feed(Ledger(Schedule(1), rule), admitted("task"))
    played = Played([0] * rule.size, [], ledger)
    waiting = [(member, 0) for member in range(rule.size)]
    while waiting and played.end is None:
        member, attempt = waiting.pop(0)
        played.tries[member] += 1
        if attempt < failing_tries.get(member, 0):
            event = MemberFailed(0, member, attempt, f"reason-{member}")
        else:
            event = done(0, member=member, attempt=attempt, reward=float(member))
        played.ledger, decisions = advance(played.ledger, event)
        played.decisions += decisions
        waiting += [(d.member, d.attempt) for d in decisions if isinstance(d, Retry)]
    return played


@pytest.mark.parametrize(
    ("rule", "failing_tries", "tries", "end"),
    [
        # retry: up to two further tries; the third failure drops the group.
        (RETRY_TWICE, {2: 1}, [1, 1, 2, 1], Collect(0, (0, 1, 2, 3))),
        (RETRY_TWICE, {2: 2}, [1, 1, 3, 1], Collect(0, (0, 1, 2, 3))),
        (RETRY_TWICE, {2: 3}, [1, 1, 3, 1], Drop(0, "reason-2")),
        (RETRY_TWICE, {1: 2, 2: 2}, [1, 3, 3, 1], Collect(0, (0, 1, 2, 3))),
        # survivors: no further try; three of the four are enough, two aren't.
        (SURVIVORS_3, {2: 9}, [1, 1, 1, 1], Collect(0, (0, 1, 3))),
        (SURVIVORS_3, {1: 9, 2: 9}, [1, 1, 1, 0], Drop(0, "reason-2")),
        (SURVIVORS_3, {3: 1}, [1, 1, 1, 1], Collect(0, (0, 1, 2))),
        # drop: the first failure is the end, the others are not waited for.
        (DROP, {2: 1}, [1, 1, 1, 0], Drop(0, "reason-2")),
        (DROP, {0: 1}, [1, 0, 0, 0], Drop(0, "reason-0")),
        (DROP, {}, [1, 1, 1, 1], Collect(0, (0, 1, 2, 3))),
    ],
)
def test_conformance_23_one_of_n_fails_under_each_policy(
    rule: MemberRule, failing_tries: dict[int, int], tries: list[int], end: Decision
) -> None:
    played = play(rule, failing_tries)
    assert (played.tries, played.end) == (tries, end)


def test_conformance_23_a_retry_names_the_member_and_its_next_attempt() -> None:
    played = play(RETRY_TWICE, {2: 9})
    assert played.decisions == [Retry(0, 2, 1), Retry(0, 2, 2), Drop(0, "reason-2")]


def test_conformance_23_a_dropped_group_refunds_its_admission_and_says_why() -> None:
    seen = counts(play(RETRY_TWICE, {1: 9}).ledger)
    assert (seen.running, seen.ready, seen.dropped) == (0, 0, {"reason-1": 1})


@given(
    failing_tries=st.dictionaries(st.integers(0, SIZE - 1), st.integers(0, 4)),
    failure=st.sampled_from(["retry", "survivors", "drop"]),
    max_retries=st.integers(0, 3),
    min_size=st.integers(1, SIZE),
)
def test_law_6_a_group_is_whole_by_its_rule_or_none(
    failing_tries: dict[int, int], failure: str, max_retries: int, min_size: int
) -> None:
    rule = MemberRule(SIZE, failure, max_retries, min_size)  # type: ignore[arg-type]  # one of 3
    played = play(rule, failing_tries)
    tries = 1 + max_retries if failure == "retry" else 1
    least = min_size if failure == "survivors" else SIZE
    well = tuple(m for m in range(SIZE) if failing_tries.get(m, 0) < tries)
    if len(well) >= least:
        assert played.end == Collect(0, well)
    else:
        assert isinstance(played.end, Drop)
        assert played.end.reason in {f"reason-{m}" for m in range(SIZE) if m not in well}
    assert all(count <= tries for count in played.tries)


@given(st.lists(st.tuples(st.integers(0, SIZE - 1), st.booleans()), max_size=30))
def test_each_member_is_running_done_or_lost(ends: list[tuple[int, bool]]) -> None:
    rule = MemberRule(SIZE, "retry", max_retries=1)
    members = rule.start
    tries = [0] * SIZE
    over: dict[int, bool] = {}
    for member, well in ends:
        assert is_late(members, member, tries[member]) == (member in over)
        if member in over:
            continue
        if well:
            members = succeed(members, done(0, member=member, attempt=tries[member]))
            over[member] = True
        else:
            members = fail(members, member, rule)
            tries[member] += 1
            if tries[member] == 2:
                over[member] = False
        assert members.running == SIZE - len(over)
        assert len(members.done) == sum(over.values())
        assert members.lost == len(over) - sum(over.values())
        assert members.places == tuple(sorted(m for m in over if over[m]))


def test_what_the_ended_members_say_of_their_group() -> None:
    members = MemberRule(3).start
    for event in (done(0, 4, 7, reward=1.0), done(0, 2, 5, member=2, reward=1.0)):
        members = succeed(members, event)
    assert (members.oldest_version, members.newest_version) == (2, 7)
    assert members.equal_rewards
    members = succeed(members, done(0, 3, 9, member=1, reward=0.5))
    assert (members.oldest_version, members.newest_version) == (2, 9)
    assert not members.equal_rewards
    assert members.places == (0, 1, 2)


def test_a_result_of_another_try_is_late_and_one_of_no_member_is_an_error() -> None:
    rule = MemberRule(2, max_retries=1)
    members = fail(rule.start, 1, rule)
    assert is_late(members, 1, 0)
    assert not is_late(members, 1, 1)
    assert is_late(members, 1, 2)
    members = fail(members, 1, rule)
    assert is_late(members, 1, 1)
    assert is_late(members, 1, ENDED)
    for member in (-1, 2):
        with pytest.raises(ValueError, match=rf"members 0\.\.1, got a result of member {member}"):
            is_late(members, member, 0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"size": 0}, "group_size must be >= 1, got 0"),
        ({"failure": "ignore"}, "failure must be 'retry', 'survivors' or 'drop', got 'ignore'"),
        ({"max_retries": -1}, "max_retries must be >= 0, got -1"),
        ({"size": 4, "failure": "survivors", "min_size": 5}, r"min_group_size must be 1\.\.4"),
        ({"min_size": 0}, "min_group_size must be .*, got 0"),
    ],
)
def test_an_impossible_rule_is_a_config_error(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        MemberRule(**settings)  # type: ignore[arg-type]  # wrong on purpose


def test_the_smallest_number_of_survivors_only_matters_with_survivors() -> None:
    assert MemberRule(1, "retry", min_size=2).expendable == 0
