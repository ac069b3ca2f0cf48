"""Many drawn schedules, each part of them from a seed of its own.

usage: python -m tests.controller.many_schedules [--schedules 10000] [--seed 0]

A schedule that fails is shrunk and printed, and replays by its `@reproduce_failure`.
"""

import argparse
import sys
import time
from functools import partial

import hypothesis
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from tests.controller.machine import ControllerMachine
from tests.controller.oracle import (
    run_to_its_end,
    run_until_a_stage_fails,
    run_until_cancelled,
)

AT_ONCE = 250  # examples from one seed: hypothesis varies what it found before


def run_many(number, first_seed, *, at_once=AT_ONCE):
    """Run so many schedules of all kinds; yield how many were run, now and then."""
    for part, start in enumerate(range(0, number, at_once)):
        examples = min(at_once, number - start)
        KINDS[part % len(KINDS)](examples, first_seed + part)
        yield start + examples


def run_drawn(kind, examples, number):
    """Run schedules whose latencies are drawn."""

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None, print_blob=True)
    @given(data=st.data(), scheduling=st.random_module())
    def run(data, scheduling):
        kind(data)

    run()


def run_machines(examples, number):
    """Run schedules whose calls return when a rule says so."""
    options = settings(
        max_examples=examples, stateful_step_count=20, deadline=None, print_blob=True
    )
    machine = type("Machine", (ControllerMachine,), {})  # one that takes a seed
    run_state_machine_as_test(seed(number)(machine), settings=options)


BOUNDED = partial(run_drawn, partial(run_to_its_end, deterministic=False))
LOCKSTEP = partial(run_drawn, partial(run_to_its_end, deterministic=True))
CANCELLED = partial(run_drawn, run_until_cancelled)
FAILED = partial(run_drawn, run_until_a_stage_fails)
KINDS = (BOUNDED, LOCKSTEP, BOUNDED, CANCELLED, FAILED, run_machines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    hypothesis.settings.register_profile(
        "many", suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("many")
    began = time.monotonic()
    for done in run_many(options.schedules, options.seed):
        seconds = time.monotonic() - began
        sys.stdout.write(f"{done} schedules, {seconds:.0f} s\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
