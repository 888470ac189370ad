"""Shared options of the simulator's commands, and one run from them."""

import sys
import time
from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from django.conf import settings
from django.utils.module_loading import import_string

from scheduling.core.policies import read_policy
from scheduling.core.policies.base import Policy
from scheduling.core.policies.parameters import UnknownPolicyError, checked, read_args, shown
from scheduling.core.simulation.recorder import Recorder
from scheduling.core.simulation.results import Result
from scheduling.core.simulation.setups import FAIR_WEATHER, Conditions, RuleSet, Setup
from scheduling.core.simulation.shares import Shares, read_shares
from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.readers import FORMATS, TraceFormat, read_trace, text_of
from scheduling.core.workloads.traces import Knowledge, SimulationError, Trace

_MOST_BYTES: Final = 512 * 1024 * 1024
_HOUR: Final = 3600.0


class ProfileFolder:
    """Profiles in a directory; files outside of it are never read."""

    def __init__(self, root: Path | None) -> None:
        self._root = root.resolve() if root else None

    def __call__(self, path: str) -> str | None:
        """Return the text of a file in the directory, or None if it does not exist."""
        if self._root is None:
            return None
        place = (self._root / path).resolve()
        if not place.is_relative_to(self._root) or not place.is_file():
            return None
        return place.read_text(encoding="utf-8")


def add_world_arguments(parser: ArgumentParser) -> None:
    """Add the options for cluster, rules and information of policies; not for trace and policy."""
    parser.add_argument("--profiles", type=Path, metavar="DIR", help="measured profiles, tables")
    parser.add_argument("--cluster", metavar="TYPE:NxD,...", help="as in aws:6x4,rtx:3x8")
    parser.add_argument("--rules", choices=sorted(settings.SIMULATION_RULES), default="sia")
    formats = sorted({*FORMATS, *settings.SIMULATION_FORMATS})
    parser.add_argument("--format", choices=["auto", *formats], default="auto")
    parser.add_argument(
        "--types",
        choices=["any", "asked"],
        default="any",
        help="types of a job that names one: any, or only the asked one (default: any)",
    )
    parser.add_argument(
        "--hybrid",
        action="store_true",
        help="jobs run on every measured type and size (rules events, traces of Crius)",
    )
    parser.add_argument(
        "--profile-seconds",
        type=float,
        metavar="SECONDS",
        help="profile each elastic job by a job on one device of each type (rules events)",
    )
    parser.add_argument("--interval", type=float, metavar="SECONDS", help="between rounds")
    parser.add_argument("--knowledge", choices=["observed", "oracle"], default="observed")
    parser.add_argument("--size-aware", action=BooleanOptionalAction, default=False)
    parser.add_argument("--shared-history", action=BooleanOptionalAction, default=False)
    group = parser.add_argument_group("conditions (rules events)")
    group.add_argument(
        "--guarantee",
        nargs="+",
        default=[],
        metavar="NAME=TYPE:NODES,...",
        help="guarantees; each virtual cluster has its own policy and is placed on cells",
    )
    group.add_argument(
        "--node-mtbf", type=float, metavar="HOURS", help="mean time until a node fails"
    )
    group.add_argument(
        "--node-repair", type=float, metavar="HOURS", default=1.0, help="mean time to repair"
    )
    group.add_argument(
        "--restart-seconds", type=float, default=30.0, help="cost of a restart or resize"
    )
    group.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=0.0,
        help=(
            "interval between checkpoints; work since the last one is lost in a failure (0: none)"
        ),
    )
    group.add_argument(
        "--estimate-noise",
        type=float,
        default=0.0,
        metavar="SIGMA",
        help="log-normal error factor of declared sizes",
    )


def read_conditions(options: Mapping[str, Any]) -> Conditions:
    """Build the simulation conditions from the options.

    Raises:
        SimulationError: a condition is out of its bounds, or these rules do not support it.
    """
    bounds = {
        "node_mtbf": (0.01, 1e6),
        "node_repair": (0.001, 1e5),
        "restart_seconds": (0.0, 86_400.0),
        "checkpoint_seconds": (0.0, 86_400.0 * 30),
        "estimate_noise": (0.0, 5.0),
    }
    for name, (low, high) in bounds.items():
        value = options[name]
        if value is not None and not low <= value <= high:
            flag = name.replace("_", "-")
            raise SimulationError(f"--{flag} is {value:g}; use {low:g} to {high:g}")
    mtbf = options["node_mtbf"]
    conditions = Conditions(
        node_mtbf=None if mtbf is None else mtbf * _HOUR,
        node_repair=options["node_repair"] * _HOUR,
        restart_seconds=options["restart_seconds"],
        checkpoint_seconds=options["checkpoint_seconds"],
        estimate_noise=options["estimate_noise"],
    )
    if conditions != FAIR_WEATHER and options["rules"] != "events":
        raise SimulationError(
            f"the rules {options['rules']} have a fixed setup; failures, noise and other "
            f"restart costs need --rules events"
        )
    return conditions


def read_guarantees(options: Mapping[str, Any]) -> Shares:
    """Build the virtual clusters from the options.

    Raises:
        SimulationError: a guarantee is malformed, too large, or not supported by the rules.
    """
    if options["guarantee"] and options["rules"] != "events":
        raise SimulationError("--guarantee needs --rules events")
    return read_shares(options["guarantee"], read_cluster(options["cluster"]))


def read_workload(path: Path, format_name: str, types: str = "any") -> Trace:
    """Read the trace in a file, compressed or not.

    Args:
        path: the file.
        format_name: its format, or ``auto``.
        types: ``asked`` if a job's requested device type excludes all others.

    Raises:
        SimulationError: the file is too large, malformed, or of an unknown format.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise SimulationError(f"{path} is larger than {_MOST_BYTES} bytes")
    text = text_of(path.read_bytes(), path.name, most=_MOST_BYTES)
    trace = read_trace(text, path.name, format_name, _formats(format_name))
    if types == "any":
        return trace
    jobs = tuple(replace(job, types=(job.wish,)) if job.wish else job for job in trace.jobs)
    return replace(trace, jobs=jobs)


def _formats(wanted: str) -> Mapping[str, TraceFormat]:
    """Return all trace formats of this installation.

    Raises:
        SimulationError: the wanted format is not part of it.
    """
    formats = dict(FORMATS)
    for name, path in settings.SIMULATION_FORMATS.items():
        try:
            formats[name] = _imported(path, f"--format {name}")
        except SimulationError:
            if name == wanted:
                raise
    return formats


def find_rules(name: str) -> RuleSet:
    """Return the rule set of a name.

    Raises:
        SimulationError: the rules are not part of this installation.
    """
    return cast("RuleSet", _imported(settings.SIMULATION_RULES[name], f"--rules {name}"))


def _imported(path: str, option: str) -> Any:
    """Import the object of a dotted name; reproductions are not part of every installation."""
    try:
        return import_string(path)
    except ModuleNotFoundError as error:
        if error.name is None or not path.startswith(f"{error.name}."):
            raise  # the module exists, but one of its imports is missing
        raise SimulationError(
            f"{option} needs the package {error.name}, which is not part of this installation; "
            "run the command in a complete checkout of Tessera"
        ) from error


def find_policy(rules: str, name: str, args: Sequence[str], wraps: Sequence[str]) -> Policy:
    """Create a policy for a run; rules with policies of their own (``policies``) run only these.

    Raises:
        SimulationError: the rules are not part of this installation.
        UnknownPolicyError: the name or a parameter is not valid.
    """
    own: Mapping[str, type[Policy]] | None = getattr(find_rules(rules), "policies", None)
    if own is None:
        return read_policy(name, args, wraps)
    if name not in own:
        raise UnknownPolicyError(
            f"the rules {rules} have no policy {shown(name)}; they have {', '.join(sorted(own))}"
        )
    if wraps:
        raise UnknownPolicyError(f"--with does not apply to policies of the rules {rules}")
    return own[name](**checked(own[name], read_args(own[name], args, name), name))


def build_setup(trace: Trace, policy: Policy, options: Mapping[str, Any], seed: int) -> Setup:
    """Build the inputs of a simulation from the options.

    Raises:
        SimulationError: an argument is not valid; the message names it.
    """
    if options["interval"] is not None and not 1.0 <= options["interval"] <= 86_400.0:
        raise SimulationError(f"--interval is {options['interval']:g}; use 1 to 86400 seconds")
    if options["hybrid"] and (options["rules"] != "events" or trace.format != "crius"):
        raise SimulationError("--hybrid needs --rules events and a trace of format crius")
    profiling = options["profile_seconds"]
    if profiling is not None and options["rules"] != "events":
        raise SimulationError("--profile-seconds needs --rules events")
    if profiling is not None and not 1.0 <= profiling <= 3_600.0:
        raise SimulationError(f"--profile-seconds is {profiling:g}; use 1 to 3600 seconds")
    return Setup(
        trace=trace,
        cluster=read_cluster(options["cluster"]),
        shares=read_guarantees(options),
        files=ProfileFolder(options["profiles"]),
        interval=options["interval"],
        seed=seed,
        knowledge=Knowledge(
            oracle=options["knowledge"] == "oracle",
            size_aware=options["size_aware"],
            shared_history=options["shared_history"],
        ),
        conditions=read_conditions(options),
        policy=policy,
        hybrid=options["hybrid"],
        profile_seconds=profiling,
    )


def what_it_saw(options: Mapping[str, Any]) -> str:
    """Describe the information of a policy in one line."""
    return (
        f"the policy saw: {options['knowledge']} performance, "
        f"{'declared' if options['size_aware'] else 'no'} sizes, "
        f"{'shared' if options['shared_history'] else 'each job its own'} history"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run of a comparison; small enough to be sent to another process."""

    policy: str
    name: str
    args: tuple[str, ...]
    wraps: tuple[str, ...] = ()
    workload: Path
    seed: int
    options: Mapping[str, Any]
    record: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """The result of a task.

    Attributes:
        recorder: recorded series; None if no charts were requested.
        left_out: number of trace lines that are not jobs, by reason.
    """

    task: Task
    result: Result
    devices: int
    recorder: Recorder | None
    left_out: Mapping[str, int]


def run_task(task: Task) -> TaskOutcome:
    """Run one simulation.

    Raises:
        SimulationError: an argument is not valid; the message names it.
    """
    policy = find_policy(task.options["rules"], task.name, task.args, task.wraps)
    trace = read_workload(task.workload, task.options["format"], task.options["types"])
    setup = build_setup(trace, policy, task.options, task.seed)
    recorder = Recorder() if task.record else None
    result = find_rules(task.options["rules"])(
        setup,
        policy,
        rules=task.options["rules"],
        workload=task.workload.name,
        timer=time.perf_counter,
        on_round=recorder,
    )
    if recorder is not None:
        recorder.close({job.name: job.finished for job in result.jobs}, result.ended)
    return TaskOutcome(
        task=task,
        result=result,
        devices=setup.cluster.devices,
        recorder=recorder,
        left_out=dict(trace.left_out),
    )


class ProgressBar:
    """A progress bar on the terminal: finished and total runs, and remaining time."""

    def __init__(self, total: int, *, unit: str, clock: Callable[[], float] = time.monotonic):
        self._total = max(1, total)
        self._unit = unit
        self._clock = clock
        self._began = clock()
        self._shown = -1.0
        self._live = sys.stderr.isatty()

    def show(self, done: int, note: str = "") -> None:
        """Draw the bar, at most twice a second, and only on a terminal."""
        now = self._clock()
        if not self._live or (done < self._total and now - self._shown < 0.5):
            return
        self._shown = now
        part = min(1.0, done / self._total)
        bar = "#" * int(24 * part)
        rest = (now - self._began) * (1.0 - part) / part if part > 0.0 else 0.0
        left = f"{int(rest) // 60}:{int(rest) % 60:02d} left" if part > 0.0 else ""
        sys.stderr.write(f"\r[{bar:<24}] {done}/{self._total} {self._unit} {left} {note[:40]:<40}")
        sys.stderr.flush()

    def end(self) -> None:
        """End the line of the bar."""
        if self._live:
            sys.stderr.write("\n")
