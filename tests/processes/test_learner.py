"""The learner over the devices of two processes: what both see, and what one process would see."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import chex
import pytest

from headrace import load_policy
from headrace.pipeline.algorithms.config import KlConfig
from headrace.pipeline.algorithms.presets import PRESETS
from headrace.pipeline.learner.fingerprint import fingerprint
from headrace.pipeline.models.lora import LoraConfig
from headrace.sharding.mesh import Topology
from tests.processes.launch import run_in_processes
from tests.processes.learning import (
    Begun,
    Case,
    Learnt,
    begin,
    begin_and_learn_little,
    learn,
    learn_little,
    started,
)

INT8 = LoraConfig(rank=2, base="int8", publish="adapters")
MERGED, NF4 = LoraConfig(rank=2, base="int8"), LoraConfig(rank=2, base="nf4")
GRPO, PPO = Case(PRESETS["grpo"]), Case(PRESETS["ppo"])
MOVING, BASE = (
    Case(replace(PRESETS["grpo"], kl=kl))
    for kl in (KlConfig(0.1, reference_decay=0.9), KlConfig(0.1, reference="base"))
)
Results = list[tuple[Begun, Learnt]]


def in_two(function: Callable[..., Any], case: Case, tensor: int, where: Path) -> Results:
    """Call it in two processes; it saves policies in `where`, beside the files of the call."""
    files = where / "files"
    files.mkdir()
    return run_in_processes(function, case, tensor, where / "two", folder=files)


def assert_same(two: Results) -> None:
    """Equal bit for bit."""
    (begun, learnt), (also_begun, also_learnt) = two
    assert begun == also_begun
    chex.assert_trees_all_equal(learnt.params, also_learnt.params)
    assert learnt[1:] == also_learnt[1:]


def assert_close(learnt: Learnt, expected: Learnt) -> None:
    """Equal up to rounding: sums over devices of two processes may be taken in another order."""
    assert learnt.fixed == expected.fixed
    chex.assert_trees_all_close(learnt.params, expected.params, rtol=0, atol=1e-6)
    chex.assert_trees_all_close(learnt.metrics, expected.metrics, rtol=1e-4, atol=1e-5)


def test_two_processes_begin_and_learn_as_one_does(tmp_path: Path) -> None:
    two = in_two(begin_and_learn_little, GRPO, 2, tmp_path)
    assert_same(two)
    begun, learnt = two[0]
    assert_close(learnt, learn_little(2))
    _, _, start = started(GRPO, Topology.local(1))
    assert begun.start == fingerprint(start)
    chex.assert_trees_all_equal(load_policy(tmp_path / "two").params, start.trained)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a policy."""
    folder = tmp_path_factory.mktemp("saved") / "policy"
    begin(Case(), 1).saved(folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("case", "loads", "tensor"),
    [
        (GRPO, ["policy", "teacher"], 1),
        (MOVING, ["policy"], 2),
        (PPO, (), 1),
        (PPO, ["policy"], 2),
        (replace(GRPO, lora=MERGED), (), 1),
        (replace(BASE, lora=INT8), ["policy"], 2),
        (replace(GRPO, lora=NF4), (), 2),
    ],
    ids=["grpo", "moving", "ppo", "ppo-loaded", "int8", "int8-base", "nf4"],
)
def test_two_processes_learn_what_one_does(
    case: Case, loads: Sequence[str], tensor: int, saved: Path, tmp_path: Path
) -> None:
    case = replace(case, **dict.fromkeys(loads, saved))
    two = in_two(learn, case, tensor, tmp_path)
    assert_same(two)
    (begun, learnt), _ = two
    expected_begun, expected = learn(case, tensor, tmp_path / "one")
    assert begun == expected_begun
    assert_close(learnt, expected)
    assert begun.start == fingerprint(started(case, Topology.local(1))[2])
    for kind, atol in (("", 0.0), (" learnt", 1e-5)):
        found, alone = (load_policy(tmp_path / f"{it}{kind}").params for it in ("two", "one"))
        chex.assert_trees_all_close(found, alone, rtol=0, atol=atol)
    if not case.lora.on:
        assert fingerprint(found) == learnt.trained
