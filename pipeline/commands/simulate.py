"""`headrace simulate` and `headrace tune`: predictions under a virtual clock, without JAX."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import tyro
from rich.console import Console

from ...envs.builtin import BUILTIN
from ..errors import HeadraceError
from ..simulate.agent import SCENARIOS
from ..simulate.config import Settings
from ..simulate.progress import open_progress
from ..simulate.recipes import RecipeParts, from_recipe
from ..simulate.report import Report
from ..simulate.run import simulate as run_simulation
from ..simulate.scenarios import Packing, Simulation, Source, resolve
from ..simulate.show import as_text as report_as_text
from ..simulate.tune import TuneSettings, default_settings, write_svg
from ..simulate.tune import tune as run_tuning
from ..simulate.tune_report import Findings, as_record, as_text, as_words
from .messages import explain, say


def simulate(name_or_file: str, flags: Sequence[str]) -> int:
    """Predict one run."""
    try:
        settings = [flag for flag in flags if flag != "--json"]
        report = run_simulation(_parse_simulation(name_or_file, settings))
    except (HeadraceError, BaseExceptionGroup) as error:
        return explain(error)
    _show_report(report, as_json="--json" in flags)
    return 0


def tune(name_or_file: str, flags: Sequence[str]) -> int:
    """Predict many runs, and recommend one."""
    try:
        source = _simulation_source(name_or_file)
        settings = tyro.cli(
            TuneSettings,
            default=default_settings(source),
            args=[flag for flag in flags if flag != "--json"],
            prog=f"headrace tune {name_or_file}",
        )
        with open_progress(sys.stderr, source.name) as on_progress:
            findings = run_tuning(source, settings, on_progress=on_progress)
        if settings.tune.svg is not None:
            write_svg(findings, settings.tune.svg)
    except (HeadraceError, BaseExceptionGroup) as error:
        return explain(error)
    _show_findings(findings, as_json="--json" in flags)
    return 0


def _parse_simulation(name_or_file: str, overrides: Sequence[str]) -> Simulation:
    source = _simulation_source(name_or_file)
    settings = tyro.cli(
        Settings,
        default=source.settings,
        args=list(overrides),
        prog=f"headrace simulate {name_or_file}",
    )
    bounds = "--schedule.max-mean-lag", "--schedule.max-lag"
    given = any(flag.replace("_", "-").startswith(bounds) for flag in overrides)
    return resolve(replace(source, bounds_are_given=given), settings)


def _simulation_source(name_or_file: str) -> Source:
    if name_or_file in SCENARIOS:
        return SCENARIOS[name_or_file]()
    from ..recipes import load_recipe  # noqa: PLC0415 - which imports JAX

    recipe = load_recipe(name_or_file, beside=SCENARIOS)
    parts = RecipeParts(
        name=recipe.run.name,
        latency=recipe.env.latency_of(BUILTIN.get(recipe.env.name)),  # no module is imported
        schedule=recipe.schedule,
        rollout=recipe.rollout,
        controller=recipe.controller,
        evaluate=recipe.evaluate,
        packing=Packing(recipe.learner.microbatch_rows, recipe.learner.row_tokens),
        sampler_rows=recipe.sampler.rows,
        steps=recipe.run.steps,
        seed=recipe.run.seed,
    )
    return from_recipe(parts)


def _show_findings(findings: Findings, *, as_json: bool) -> None:
    if as_json:
        say(json.dumps(as_record(findings)))
        return
    console = Console(highlight=False)
    console.print(as_text(findings, width=console.width))
    say(as_words(findings))


def _show_report(report: Report, *, as_json: bool) -> None:
    if as_json:
        say(json.dumps(report.as_record()))
        return
    Console().print(report_as_text(report))
