"""Where time goes: what is dropped, masked, padded, waited for, and what could not be faster."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.simulate.config import TokensConfig
from headrace.pipeline.simulate.episodes import EpisodeBook, Fate, slot_seconds
from headrace.pipeline.simulate.report import dropped_by_decile
from headrace.pipeline.simulate.run import simulate
from headrace.pipeline.simulate.speeds import SamplerCosts, work_of
from tests.simulate.settings import recipe_simulation


def make_book(*, slot_is_row):
    return EpisodeBook(lambda: 0.0, slot_is_row=slot_is_row, run_ended=lambda: False)


def test_a_row_that_is_given_back_after_the_end_is_part_of_the_tenths():
    book = make_book(slot_is_row=True)
    episode = book.open()
    book.turn_asked(episode.serial, 0)
    book.close(episode)  # while it waits: it is cancelled
    book.add_slot_seconds(episode, 2.0)
    assert slot_seconds(book.decided)[Fate.DROPPED] == 2.0
    assert dropped_by_decile(book.decided)[-1] == 1.0


def test_what_grew_too_old_in_a_used_episode_is_dropped_work():
    book = make_book(slot_is_row=True)
    whole, partly, late = (book.open() for _ in range(3))
    for episode in (whole, partly, late):
        book.turn_asked(episode.serial, 7)
        book.add_slot_seconds(episode, 4.0)
        episode.waiting = False
        book.close(episode)
    book.use(7, {whole.serial: 0.0, partly.serial: 0.25})  # the third met a deadline at its end
    spent = slot_seconds(book.decided)
    assert (spent[Fate.USEFUL], spent[Fate.DROPPED]) == (7.0, 5.0)


def test_masked_tokens_are_waste_and_no_useful_work():
    def report(over_age):
        return simulate(
            recipe_simulation(
                schedule={"max_mean_lag": 1, "max_lag": 1, "over_age": over_age},
                rollout={"group_size": 1, "min_group_size": 1},
                learner={"update_seconds": 0.0, "token_seconds": 0.0},
                latency="pareto", latency_mean_seconds=2.0, run={"steps": 30},
            )
        )  # fmt: skip

    masked = report("mask")
    assert masked.waste > 0.02
    assert masked.account["dropped"] > 0.0
    assert masked.lag.max == 1
    assert masked.efficiency <= 1
    assert sum(masked.account.values()) == pytest.approx(1.0)


def test_long_episodes_are_those_that_take_long_also_if_only_by_sampling():
    report = simulate(
        recipe_simulation(
            schedule={"max_mean_lag": 2, "max_lag": 2, "batch_groups": 4},
            rollout={"group_size": 1, "max_tokens": 300, "max_turn_tokens": 90},
            tokens=TokensConfig(prompt=4, turn=10, turn_sigma=1.0),
            latency="constant", latency_mean_seconds=0.0, run={"steps": 40},
            learner={"update_seconds": 0.0, "token_seconds": 0.0},
        )
    )  # fmt: skip
    shares = report.dropped_by_length_decile
    assert sum(shares[:5]) < sum(shares[5:])
    assert shares[-1] > 0.1


def test_an_episode_alone_takes_what_the_ideal_says():
    report = simulate(
        recipe_simulation(
            schedule={"batch_groups": 1}, rollout={"group_size": 1, "max_episodes": 1},
            sampler={"publish_seconds": 0.0},
            learner={"update_seconds": 0.0, "token_seconds": 0.0},
            rows=1, run={"steps": 1},
        )
    )  # fmt: skip
    assert report.ideal.critical_path == pytest.approx(report.virtual_seconds)
    assert report.efficiency == pytest.approx(1.0)


def test_padding_is_no_work_of_the_ideal():
    simulation = recipe_simulation(learner={"update_seconds": 0.0, "token_seconds": 1e-4})
    report = simulate(simulation)
    padding = report.account["padding"] * report.virtual_seconds / (1 - simulation.sampler_share)
    assert padding > 0
    microbatches = (report.ideal.learner + padding) / 1e-4 / (2 * 100)
    assert microbatches == pytest.approx(round(microbatches))
    constant = simulate(recipe_simulation(learner={"update_seconds": 0.3, "token_seconds": 0.0}))
    assert constant.account["padding"] == 0
    assert constant.ideal.learner == pytest.approx(0.3 * 12)


def test_the_learner_waits_for_the_last_evaluation_and_does_not_starve_meanwhile():
    report = simulate(
        recipe_simulation(
            evaluate={"every": 1, "tasks": 3}, run={"steps": 2}, latency="constant",
            latency_mean_seconds=5.0, learner={"update_seconds": 0.0, "token_seconds": 0.0},
            schedule={"max_mean_lag": 2, "max_lag": 5}, rows=None,
        )
    )  # fmt: skip
    # Rows are unlimited, so evaluations run beside the slots, and only the learner's part is left.
    assert report.account["evaluation"] > 0.1
    assert sum(report.account.values()) == pytest.approx(1.0)


TURNS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=5)


@given(TURNS, st.integers(1, 8), st.none() | st.integers(2, 200), st.sampled_from([0.0, 0.5, 2.0]))
def test_the_ideal_of_a_sampler_is_the_sum_of_its_steps(given_sampled, rows, kv_tokens, dispatch):
    turns, end = [], 0
    for observed, sampled in given_sampled:
        turns.append((end + observed, end + observed + sampled))
        end += observed + sampled
    costs = SamplerCosts(dispatch, 0.01, 0.001, 0.1, kv_tokens=kv_tokens)
    contexts = np.concatenate([np.arange(start, end) for start, end in turns])
    steps = max(len(contexts) / rows, contexts.sum() / (kv_tokens or np.inf))
    expected = (
        steps * dispatch
        + len(contexts) * 0.01
        + contexts.sum() * 0.001
        + sum(observed for observed, _ in given_sampled) * 0.1
    )
    assert costs.seconds(work_of(turns), batch_rows=rows) == pytest.approx(expected)
