"""Small simulations for tests."""

from dataclasses import replace

from headrace.envs.latency import LatencyConfig
from headrace.pipeline.evaluate import EvaluateConfig
from headrace.pipeline.groups.schedule import Schedule
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.simulate.recipes import RecipeParts, from_recipe
from headrace.pipeline.simulate.scenarios import (
    Packing,
    Simulation,
    Source,
    balanced,
    resolve,
)
from headrace.pipeline.stages import ControllerConfig


def balanced_simulation(*, schedule=None, run=None, **sim) -> Simulation:
    """The built-in scenario with some settings changed."""
    source = balanced()
    settings = replace(
        source.settings,
        sim=replace(source.settings.sim, **sim),
        schedule=replace(source.settings.schedule, **(schedule or {})),
        run=replace(source.settings.run, **(run or {})),
    )
    return resolve(source, settings)


def recipe() -> Source:
    """Groups of four, three turns of tools, few rows, padding."""
    return from_recipe(
        RecipeParts(
            name="small",
            latency=LatencyConfig("lognormal", mean_seconds=0.2),
            schedule=Schedule(batch_groups=4, max_mean_lag=2, max_lag=5),
            rollout=RolloutConfig(
                group_size=4, max_turns=3, max_turn_tokens=8, max_tokens=48, max_episodes=48
            ),
            controller=ControllerConfig(),
            evaluate=EvaluateConfig(tasks=5),
            packing=Packing(microbatch_rows=2, row_tokens=100),
            sampler_rows=12,
            steps=12,
            seed=0,
        )
    )


def recipe_simulation(
    *, schedule=None, rollout=None, sampler=None, learner=None, evaluate=None, run=None, **sim
) -> Simulation:
    """The small recipe with some settings changed."""
    source = recipe()
    settings = source.settings
    speeds = settings.sim.speeds
    speeds = replace(
        speeds,
        sampler=replace(speeds.sampler, **(sampler or {})),
        learner=replace(speeds.learner, **(learner or {})),
    )
    settings = replace(
        settings,
        sim=replace(settings.sim, speeds=speeds, **sim),
        schedule=replace(settings.schedule, **(schedule or {})),
        rollout=replace(settings.rollout, **(rollout or {})),
        evaluate=replace(settings.evaluate, **(evaluate or {})),
        run=replace(settings.run, **(run or {})),
    )
    return resolve(source, settings)
