"""The command line. The only place that prints and sets exit codes.

Exit codes: 0 done, 1 a stage failed, 2 a user's mistake, 130 Ctrl-C, 143 SIGTERM.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from .errors import ConfigError, HeadraceError, describe, innermost, leaves, ours_in

if TYPE_CHECKING:
    from .config import Recipe
    from .observe.run_directory import RunDirectory
    from .simulate.report import Report
    from .simulate.scenarios import Simulation, Source
    from .simulate.tune_report import Findings
    from .train import Job

INNERMOST_FRAMES = 8  # of what went wrong, shown to people

USAGE = """\
usage: headrace COMMAND

commands:
  train RECIPE [--section.key value ...]  run a recipe: a built-in name or a .toml file
  train RECIPE --policy NAME              start from a pretrained policy: a folder, a name on the
                                          Hub, a .gguf file, or smollm2
  train RECIPE --algorithm NAME           train by the method of a paper: grpo, dapo, gspo, ppo, …
  train RECIPE --help                     show all settings, with the recipe's values
  simulate RECIPE [--sim.key value ...]   predict a run under a virtual clock: a recipe, or the
                                          scenarios balanced and agent; --json for one JSON object
  tune RECIPE [--tune.key value ...]      try schedules, loads and splits of the chips in
                                          simulation, and recommend one
  chat MODEL_OR_RUN [--key value ...]     talk to a policy: a run directory, or as for --policy
  audit RUN                               check the log of what a run's sandboxes executed
  recipes                                 list the built-in recipes
  --version                               show the version

Start with: headrace train calculator
"""

NEEDED = {
    "train": "a recipe: headrace train calculator, or a .toml file",
    "simulate": "a recipe or scenario: headrace simulate balanced",
    "tune": "a recipe or scenario: headrace tune balanced",
    "chat": "a policy: headrace chat smollm2, or a run directory",
}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] in (["simulate"], ["tune"]):  # only in a process of its own
            from .simulate.timers import collect_rarely  # noqa: PLC0415

            collect_rarely()
        code = run(given)
        sys.stdout.flush()
    except KeyboardInterrupt:  # before or after the part that handles signals in order
        print("headrace: interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # whoever read has gone, as `head` does
        _give_up_output()
        code = 128 + signal.SIGPIPE
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code."""
    match list(arguments):
        case [] | ["-h" | "--help"]:
            print(USAGE, end="")
            return 0
        case ["--version"]:
            print(f"headrace {version('headrace')}")
            return 0
        case [("train" | "simulate" | "tune" | "chat"), "-h" | "--help"]:
            print(USAGE, end="")
            return 0
        case [("train" | "simulate" | "tune" | "chat") as command, name, *rest] if _is_name(name):
            commands = {"train": _train, "simulate": _simulate, "tune": _tune, "chat": _chat}
            return commands[command](name, rest)
        case [("train" | "simulate" | "tune" | "chat") as command, *_]:
            return _mistake(f"{command} needs {NEEDED[command]}")
        case ["audit", run_folder]:
            return _audit(run_folder)
        case ["recipes"]:
            return _recipes()
        case ["audit", *_]:
            return _mistake("audit needs a run directory: headrace audit runs/<your run>")
        case ["recipes" | "--version" as command, *rest]:
            return _mistake(f"{command} takes no further arguments, got {' '.join(rest)}")
        case [command, *_]:
            return _mistake(f"unknown command {command!r}; see headrace --help")
    raise AssertionError("unreachable: all argument lists are covered")


def _is_name(argument: str) -> bool:
    return not argument.startswith("-")


def _train(name_or_file: str, flags: Sequence[str]) -> int:
    began_seconds = time.monotonic()
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # until somebody listens they would kill
        signal.signal(number, signal.SIG_IGN)
    # Imported here: JAX takes seconds to import, and the other commands don't need it.
    import trio  # noqa: PLC0415

    from .assemble import assemble  # noqa: PLC0415
    from .compilation_cache import keep_programs  # noqa: PLC0415
    from .observe.run_directory import RunDirectory  # noqa: PLC0415
    from .observe.view import open_view  # noqa: PLC0415
    from .supervise import end_without_threads  # noqa: PLC0415
    from .train import Job  # noqa: PLC0415

    sys.path.append(str(Path.cwd()))  # where users keep the modules of their environments
    try:
        recipe = _parse_recipe(name_or_file, flags)
        parts = assemble(recipe)  # finds the mistakes that are left, before anything is written
        config = recipe.run
        directory = RunDirectory.create_for(config.dir, config.name)
        keep_programs(config.compilation_cache)
        with open_view(config.name, config.steps, stream=sys.stdout, kind=config.view) as view:
            job = Job(recipe, parts, directory, view)
            del parts  # the job lets go of pretrained weights
            trio.run(job.run, began_seconds)
    except (HeadraceError, BaseExceptionGroup) as error:
        return _explain(error)
    code = _finish(job, directory)
    end_without_threads(code, after_seconds=recipe.controller.exit_deadline_seconds)
    return code


def _parse_recipe(name_or_file: str, overrides: Sequence[str]) -> "Recipe":
    import tyro  # noqa: PLC0415

    from .config import Recipe  # noqa: PLC0415
    from .recipes import load_recipe  # noqa: PLC0415

    what = "a folder, a name on the Hub, a .gguf file, or smollm2"
    policy, flags = _take_out("--policy", overrides, what)
    algorithm, flags = _take_out("--algorithm", flags, "a method such as grpo, gspo or ppo")
    try:
        return tyro.cli(
            Recipe,
            default=load_recipe(name_or_file, policy=policy, algorithm=algorithm),
            args=flags,
            prog=f"headrace train {name_or_file}",
        )
    except ValueError as error:  # from the environments, which know no ConfigError
        raise ConfigError(str(error)) from error


def _take_out(flag: str, arguments: Sequence[str], what: str) -> tuple[str | None, list[str]]:
    """Take `--flag NAME` out: it chooses settings, so it comes before all the others."""
    rest = list(arguments)
    if flag not in rest:
        return None, rest
    place = rest.index(flag)
    if place + 1 == len(rest) or rest[place + 1].startswith("--"):
        raise ConfigError(f"{flag} needs {what}")
    name = rest[place + 1]
    del rest[place : place + 2]
    return name, rest


def _simulate(name_or_file: str, flags: Sequence[str]) -> int:
    from .simulate.run import simulate  # noqa: PLC0415

    try:
        settings = [flag for flag in flags if flag != "--json"]
        report = simulate(_parse_simulation(name_or_file, settings))
    except (HeadraceError, BaseExceptionGroup) as error:
        return _explain(error)
    _show_report(report, as_json="--json" in flags)
    return 0


def _parse_simulation(name_or_file: str, overrides: Sequence[str]) -> "Simulation":
    import tyro  # noqa: PLC0415

    from .simulate.config import Settings  # noqa: PLC0415
    from .simulate.scenarios import resolve  # noqa: PLC0415

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


def _simulation_source(name_or_file: str) -> "Source":
    from .simulate.agent import SCENARIOS  # noqa: PLC0415
    from .simulate.recipes import RecipeParts, from_recipe  # noqa: PLC0415
    from .simulate.scenarios import Packing  # noqa: PLC0415

    if name_or_file in SCENARIOS:
        return SCENARIOS[name_or_file]()
    from .recipes import load_recipe  # noqa: PLC0415 - which imports JAX

    try:
        recipe = load_recipe(name_or_file)
    except ConfigError as error:
        raise ConfigError(f"{error}; built-in scenarios: {', '.join(SCENARIOS)}") from error
    parts = RecipeParts(
        name=recipe.run.name,
        latency=recipe.env.latency,
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


def _tune(name_or_file: str, flags: Sequence[str]) -> int:
    import tyro  # noqa: PLC0415

    from .simulate.progress import open_progress  # noqa: PLC0415
    from .simulate.tune import TuneSettings, default_settings, tune, write_svg  # noqa: PLC0415

    try:
        source = _simulation_source(name_or_file)
        settings = tyro.cli(
            TuneSettings,
            default=default_settings(source),
            args=[flag for flag in flags if flag != "--json"],
            prog=f"headrace tune {name_or_file}",
        )
        with open_progress(sys.stderr, source.name) as on_progress:
            findings = tune(source, settings, on_progress=on_progress)
        if settings.tune.svg is not None:
            write_svg(findings, settings.tune.svg)
    except (HeadraceError, BaseExceptionGroup) as error:
        return _explain(error)
    _show_findings(findings, as_json="--json" in flags)
    return 0


def _show_findings(findings: "Findings", *, as_json: bool) -> None:
    from rich.console import Console  # noqa: PLC0415

    from .simulate.tune_report import as_record, as_text, as_words  # noqa: PLC0415

    if as_json:
        _say(json.dumps(as_record(findings)))
        return
    console = Console(highlight=False)
    console.print(as_text(findings, width=console.width))
    _say(as_words(findings))


def _show_report(report: "Report", *, as_json: bool) -> None:
    if as_json:
        _say(json.dumps(report.as_record()))
        return
    from rich.console import Console  # noqa: PLC0415

    from .simulate.show import as_text  # noqa: PLC0415

    Console().print(as_text(report))


def _chat(model_or_run: str, flags: Sequence[str]) -> int:
    import trio  # noqa: PLC0415
    import tyro  # noqa: PLC0415

    from .chat.conversation import ChatConfig  # noqa: PLC0415
    from .chat.session import Terminal, chat, load_for_chat  # noqa: PLC0415

    try:
        config = tyro.cli(ChatConfig, args=list(flags), prog=f"headrace chat {model_or_run}")
        policy = load_for_chat(model_or_run)
        trio.run(chat, policy, config, Terminal(_read_line, _say))
    except (HeadraceError, BaseExceptionGroup) as error:
        return _explain(error)
    return 0


def _read_line() -> str | None:
    try:
        return input("> ")
    except EOFError:
        return None


def _audit(run_folder: str) -> int:
    from ..envs.sandbox.audit import audit_run  # noqa: PLC0415

    try:
        _say(audit_run(Path(run_folder)))
    except (OSError, ValueError) as error:
        return _mistake(str(error))
    return 0


def _recipes() -> int:
    from .recipes import builtin_recipes  # noqa: PLC0415

    names = builtin_recipes()
    width = max(len(name) for name in names)
    for name, text in names.items():
        print(f"{name:<{width}}  {text}")
    return 0


def _finish(job: "Job", directory: "RunDirectory") -> int:
    """Say where the results are and what to do next."""
    where = directory.path
    if job.interrupted_by is not None:
        _say(f"Stopped by {job.interrupted_by.name}; what was done so far is in {where}")
        return 128 + job.interrupted_by
    _say(
        f"Done. The run is in {where}:\n"
        "  summary.json, metrics.jsonl, trajectories.jsonl and the resolved config.toml\n"
        f"Next: read what the policy does:  tail -n 3 {where / 'trajectories.jsonl'}\n"
        f"      or change something:        headrace train {where / 'config.toml'} --run.seed 1"
    )
    return 0


def _say(text: str) -> None:
    """Print at the end of a run, which is no failure if nobody listens any more."""
    try:
        print(text, flush=True)
    except OSError:
        _give_up_output()


def _give_up_output() -> None:
    """Write to nowhere: the interpreter flushes once more at its exit, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(error: BaseException) -> int:
    """Say in one message what ended the run; raise what is nobody's expected error."""
    ours = list(ours_in(error))
    if not ours:
        return _explain_foreign(error)
    # Those who waited for a stage that died fail too; the one that died is the news.
    cause = min(ours, key=_is_consequence)
    if isinstance(cause, ConfigError):
        return _mistake(str(cause))
    if cause.__cause__ is not None and not list(ours_in(cause.__cause__)):
        _print_place(innermost(cause.__cause__))  # unexpected: where it happened matters
    print(f"headrace: {cause}", file=sys.stderr)
    return 1


def _explain_foreign(error: BaseException) -> int:
    """Say what ended the run where it is no error of a stage, such as a SystemExit."""
    import trio  # noqa: PLC0415

    news = [leaf for leaf in leaves(error) if not isinstance(leaf, trio.Cancelled)]
    cause = news[0] if news else error
    if isinstance(cause, KeyboardInterrupt):
        raise cause
    _print_place(cause)
    notes: list[str] = vars(cause).get("__notes__", [])
    where = f" ({notes[0]})" if notes else ""
    print(f"headrace: {describe(cause)}{where}", file=sys.stderr)
    return 1


def _print_place(error: BaseException) -> None:
    traceback.print_exception(error, limit=-INNERMOST_FRAMES, chain=False)


def _is_consequence(error: HeadraceError) -> bool:
    import trio  # noqa: PLC0415

    return isinstance(innermost(error.__cause__ or error), trio.ClosedResourceError)


def _mistake(text: str) -> int:
    print(f"headrace: {text}", file=sys.stderr)
    return 2
