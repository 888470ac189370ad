"""Command ``manage.py compare``: compare policies on the same workloads and seeds."""

import json
import multiprocessing
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduling.core.policies import UnknownPolicyError
from scheduling.core.simulation.comparing import METRICS, ComparisonRun, compare
from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.traces import SimulationError
from scheduling.management.reports import render_report
from scheduling.management.simulations import (
    ProgressBar,
    Task,
    TaskOutcome,
    add_world_arguments,
    find_policy,
    find_rules,
    read_conditions,
    read_guarantees,
    run_task,
    what_it_saw,
)

#: The plus sign before the name of a rule, but not that of 1e+3.
_RULES: Final = re.compile(r"\+(?=[a-z])")
_TABLE = ("avg_jct_h", "p99_jct_h", "makespan_h", "worst_ftf")


class Command(BaseCommand):
    """Simulate each policy on each workload with each seed, and compare them in pairs."""

    help = "Compare policies on the same workloads, as a table, JSON or an offline report."
    requires_system_checks: list[str] = []  # noqa: RUF012 (as the base class declares it)
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the runs to compare, and the output."""
        parser.add_argument(
            "--workload", type=Path, nargs="+", required=True, metavar="FILE", help="traces"
        )
        parser.add_argument(
            "--policy",
            nargs="+",
            required=True,
            metavar="NAME[:ARG=VALUE,...][+RULE[:ARG=VALUE,...]...]",
            help="as in sia gavel:objective=makespan sia+hysteresis:min_run=600",
        )
        parser.add_argument(
            "--baseline", metavar="POLICY", help="baseline policy; default: the first"
        )
        parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="SEED")
        parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
        parser.add_argument(
            "--json", type=Path, metavar="FILE", help="write the figures to this file"
        )
        parser.add_argument(
            "--html", type=Path, metavar="FILE", help="write a report to this file"
        )
        add_world_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run and compare them all.

        Raises:
            CommandError: an argument is not valid; the message names it.
        """
        try:
            tasks = _tasks(options)
            baseline = options["baseline"] or tasks[0].policy
            if baseline not in {task.policy for task in tasks}:
                raise CommandError(f"--baseline is {baseline!r}; use one of the policies given")
            outcomes = list(_outcomes(tasks, options["jobs"]))
            document = compare([_run(outcome) for outcome in outcomes], baseline)
            document = {**_facts(options), **document}
            self._print(document, outcomes)
            if options["json"]:
                text = json.dumps(document, indent=1) + "\n"
                options["json"].write_text(text, encoding="utf-8")
            if options["html"]:
                text = render_report(document, outcomes)
                options["html"].write_text(text, encoding="utf-8")
        except (SimulationError, UnknownPolicyError, ValueError) as error:
            raise CommandError(str(error)) from error
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"cannot read or write: {error}") from error

    def _print(self, document: Mapping[str, Any], outcomes: Sequence[TaskOutcome]) -> None:
        width = max(len(item["policy"]) for item in document["policies"])
        heads = "".join(f"{METRICS[metric][0]:>32}" for metric in _TABLE)
        self.stdout.write(f"{'policy':<{width}}{heads}  incomplete")
        for item in document["policies"]:
            is_baseline = item["policy"] == document["baseline"]
            cells = "".join(
                f"{_cell(item['figures'][metric], is_baseline):>32}" for metric in _TABLE
            )
            incomplete = item["censored"] + item["refused"]
            self.stdout.write(f"{item['policy']:<{width}}{cells}  {incomplete or '-'}")
        self.stdout.write(
            f"ratios (geometric means over pairs) are to {document['baseline']}, "
            "with their 95 % intervals"
        )
        self.stdout.write(document["saw"])
        for outcome in outcomes:
            for fault in outcome.result.fallbacks[:3]:
                task = outcome.task
                where = f"{task.policy} on {task.workload.name}, seed {task.seed}"
                self.stderr.write(f"fallback of {where} {fault}")


def _tasks(options: Mapping[str, Any]) -> list[Task]:
    """Build all runs, validated as far as possible before the first one starts."""
    _check(options)
    specs = {}
    for spec in options["policy"]:
        own, *around = _RULES.split(spec)
        name, _mark, rest = own.partition(":")
        specs[spec] = name, tuple(item for item in rest.split(",") if item), tuple(around)
        find_policy(options["rules"], *specs[spec])
    world = {
        key: options[key]
        for key in (
            *("profiles", "cluster", "rules", "format", "types", "hybrid", "interval"),
            *(
                "profile_seconds",
                "knowledge",
                "size_aware",
                "shared_history",
                "node_mtbf",
                "node_repair",
            ),
            *("restart_seconds", "checkpoint_seconds", "estimate_noise", "guarantee"),
        )
    }
    return [
        Task(
            policy=spec,
            name=name,
            args=args,
            wraps=wraps,
            workload=path,
            seed=seed,
            options=world,
            record=options["html"] is not None,
        )
        for spec, (name, args, wraps) in specs.items()
        for path in options["workload"]
        for seed in options["seeds"]
    ]


def _check(options: Mapping[str, Any]) -> None:
    if not options["cluster"]:
        raise CommandError("give --cluster")
    if not 1 <= options["jobs"] <= 256:
        raise CommandError(f"--jobs is {options['jobs']}; use 1 to 256")
    find_rules(options["rules"])
    read_cluster(options["cluster"])
    read_conditions(options)
    read_guarantees(options)
    for name in ("policy", "workload", "seeds"):
        given = options[name]
        twice = [str(item) for item in given if given.count(item) > 1]
        if twice:
            raise CommandError(f"{twice[0]} is given twice")
    names = [path.name for path in options["workload"]]
    if len(set(names)) < len(names):
        raise CommandError("two workloads have the same name; rename one of them")


def _outcomes(tasks: Sequence[Task], jobs: int) -> Iterator[TaskOutcome]:
    """Run the tasks in up to ``jobs`` processes, and yield their results in order."""
    progress = ProgressBar(len(tasks), unit="runs")
    progress.show(0)
    try:
        if jobs == 1:
            for done, task in enumerate(tasks, start=1):
                yield run_task(task)
                progress.show(done, task.policy)
            return
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context) as pool:
            for done, outcome in enumerate(pool.map(run_task, tasks), start=1):
                yield outcome
                progress.show(done, outcome.task.policy)
    finally:
        progress.end()


def _run(outcome: TaskOutcome) -> ComparisonRun:
    task = outcome.task
    return ComparisonRun(
        policy=task.policy,
        workload=task.workload.name,
        seed=task.seed,
        document=outcome.result.to_json(),
    )


def _facts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that all runs share."""
    keys = ("cluster", "rules", "interval", "node_mtbf", "node_repair", "restart_seconds")
    return {
        "workloads": [path.name for path in options["workload"]],
        "seeds": list(options["seeds"]),
        **{key: options[key] for key in (*keys, "checkpoint_seconds", "estimate_noise")},
        "saw": what_it_saw(options),
    }


def _cell(figure: Mapping[str, Any], is_baseline: bool) -> str:
    """Format a mean with its ratio to the baseline."""
    if figure["mean"] is None:
        return "-"
    ratio = figure["ratio"]
    if ratio is None or is_baseline:
        return f"{figure['mean']:.3f}"
    interval = "" if ratio["low"] is None else f" [{ratio['low']:.2f}, {ratio['high']:.2f}]"
    return f"{figure['mean']:.3f}  x{ratio['geometric']:.3f}{interval}"
