"""Costs of simulated hardware, against numbers worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.simulate.costs import (
    kv_token_bytes,
    learner_token_seconds,
    publish_seconds,
    replica_chips,
    sampler_costs,
)
from headrace.pipeline.simulate.hardware import CHIPS, EfficiencyConfig, HardwareConfig

PEAK = EfficiencyConfig(
    prefill_flops=1.0, decode_flops=1.0, learner_flops=1.0, memory=1.0, interconnect=1.0,
    usable_memory=1.0, step_overhead_seconds=0.0,
)  # fmt: skip

# 8e9 bf16 parameters (16 GB), 36 layers of 8 heads of 128: 2·36·8·128·2 = 147,456 bytes a token.
EIGHT = HardwareConfig("v5e", sampler_chips=8, learner_chips=16, replica_chips=8, efficiency=PEAK)


def test_eight_billion_parameters_on_eight_v5e():
    costs = sampler_costs(EIGHT, rows=64)
    assert costs.dispatch_seconds == pytest.approx(2.442e-3, rel=1e-3)  # 16 / (8·819)
    assert costs.row_seconds == pytest.approx(1.0152e-5, rel=1e-3)  # 16e9 / (8·197e12)
    assert costs.kv_token_seconds == pytest.approx(2.2505e-8, rel=1e-3)  # 147,456 / (8·819e9)
    assert costs.prefill_token_seconds == costs.row_seconds  # both 2 P FLOP, at the peak
    assert costs.kv_tokens == 759_548  # (128e9 − 16e9) / 147,456
    assert costs.rows == 64


def test_the_learner_on_sixteen_v5e():
    assert learner_token_seconds(EIGHT) == pytest.approx(2.0305e-5, rel=1e-3)  # 64e9/(16·197e12)
    once = replace(EIGHT, efficiency=replace(PEAK, learner_flops_per_parameter=6.0))
    assert learner_token_seconds(once) == pytest.approx(1.5228e-5, rel=1e-3)


def test_a_publish_is_bounded_by_who_sends_or_who_receives():
    # One replica: 16 GB come in through 8 · 200 GB/s, and go out through 16.
    assert publish_seconds(EIGHT) == pytest.approx(10e-3)
    # Four replicas of two chips: 2 · 200 GB/s each, against 64 GB out through 16 · 200 GB/s.
    assert publish_seconds(replace(EIGHT, replica_chips=2)) == pytest.approx(40e-3)
    # Two chips send four copies: 64 GB through 2 · 200 GB/s.
    few = replace(EIGHT, replica_chips=2, learner_chips=2)
    assert publish_seconds(few) == pytest.approx(160e-3)


def test_efficiencies_and_the_overhead():
    halves = EfficiencyConfig(
        prefill_flops=0.5, decode_flops=0.25, learner_flops=0.5, memory=0.5, interconnect=0.1,
        usable_memory=1.0, step_overhead_seconds=1e-3,
    )  # fmt: skip
    peak, real = sampler_costs(EIGHT), sampler_costs(replace(EIGHT, efficiency=halves))
    assert real.dispatch_seconds == pytest.approx(2 * peak.dispatch_seconds + 1e-3)
    assert real.row_seconds == pytest.approx(4 * peak.row_seconds)
    assert real.kv_token_seconds == pytest.approx(2 * peak.kv_token_seconds)
    assert real.prefill_token_seconds == pytest.approx(2 * peak.prefill_token_seconds)
    assert real.publish_seconds == pytest.approx(10 * peak.publish_seconds)


@pytest.mark.parametrize(
    ("chip", "chips", "expected"),
    [
        ("v5e", 8, 2),  # 16 GB is half of 2 · 16 GB
        ("v5p", 192, 1),
        ("v6e", 9, 1),
        ("cpu", 3, 3),  # of 1 and 3; two would do
        ("v5e", 1, 1),  # doesn't fit anyway
    ],
)
def test_by_default_a_replica_is_as_small_as_leaves_half_of_the_memory(chip, chips, expected):
    hardware = HardwareConfig(chip, sampler_chips=chips, efficiency=PEAK)
    assert replica_chips(hardware) == expected


def test_weights_that_leave_no_cache_are_refused():
    with pytest.raises(ConfigError, match=r"weights \(16\.0 GB\).*1 v5e have 16\.0 GB; raise"):
        sampler_costs(HardwareConfig("v5e", sampler_chips=1, efficiency=PEAK))


def test_a_learner_that_does_not_fit_is_refused_with_the_number_that_does():
    small = replace(EIGHT, learner_chips=4)  # 16 bytes · 8e9 = 128 GB; 4 · 16 = 64 GB
    with pytest.raises(ConfigError, match=r">= 8, as the learner's state takes 128\.0 GB"):
        learner_token_seconds(small)
    assert learner_token_seconds(replace(small, learner_chips=8)) > 0


def test_no_chip_no_costs():
    with pytest.raises(ConfigError, match=r"set --sim\.hardware\.chip"):
        sampler_costs(HardwareConfig())


@pytest.mark.parametrize(
    "wrong",
    [
        {"sampler_chips": 0}, {"learner_chips": 0}, {"layers": 0}, {"parameters": 0.0},
        {"kv_bytes": float("inf")}, {"replica_chips": 3}, {"replica_chips": 0},
    ],
)  # fmt: skip
def test_impossible_hardware_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        HardwareConfig("v5e", **wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory": 0.0}, {"decode_flops": 1.1}, {"step_overhead_seconds": -1e-3},
        {"learner_flops_per_parameter": 0.0},
    ],
)  # fmt: skip
def test_impossible_efficiencies_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        EfficiencyConfig(**wrong)


@given(
    chip=st.sampled_from(sorted(CHIPS)),
    replica=st.integers(1, 16),
    copies=st.integers(1, 16),
    parameters=st.floats(1e6, 1e9),
    rows=st.integers(1, 4096),
)
def test_more_replicas_never_slow_a_step_and_never_shrink_the_cache(
    chip, replica, copies, parameters, rows
):
    one = HardwareConfig(chip, sampler_chips=replica, replica_chips=replica, parameters=parameters)
    many = replace(one, sampler_chips=replica * copies)
    few_costs, costs = sampler_costs(one), sampler_costs(many)

    def step(costs):
        context = rows * 1000
        used = (costs.dispatch_seconds, rows * costs.row_seconds, context * costs.kv_token_seconds)
        return sum(used)

    assert costs.dispatch_seconds == few_costs.dispatch_seconds  # each reads its own copy
    assert step(costs) <= step(few_costs)
    assert costs.kv_tokens == copies * few_costs.kv_tokens
    assert costs.kv_tokens * kv_token_bytes(many) < many.sampler_chips * CHIPS[chip].memory_bytes


def test_every_chip_has_a_source_and_numbers_of_a_sane_size():
    for name, chip in CHIPS.items():
        assert len(chip.source) > 10, name
        intensity = chip.flops_per_second / chip.memory_bytes_per_second
        assert 5 < intensity < 1000, name
        assert chip.interconnect_bytes_per_second < chip.memory_bytes_per_second, name
        assert 10e9 < chip.memory_bytes < 300e9, name
