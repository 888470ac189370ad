"""Size of a batch job: nodes, tasks, GPUs, processors and memory of each node."""

import math
from dataclasses import dataclass
from typing import Any

from scheduling.compat.context import Context
from scheduling.compat.reading import Section
from scheduling.compat.slurm.messages import phrase
from scheduling.compat.slurm.values import read_count, read_gpus, read_gres, read_nodes, read_size
from scheduling.core.jobspec.errors import RefusalError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The number of nodes and the resources of each node.

    Attributes:
        nodes: minimum number of nodes.
        most_nodes: maximum number of nodes.
        tasks: number of all tasks; None if not given.
        per_node: number of tasks on each node.
        cpus: processors of each node; None for the share of its devices.
        memory: memory of each node in bytes; None for the share of its devices.
        cpus_per_task: None if not given.
        gpus_per_task: None if not given, or if each task sees all GPUs of its node.
    """

    nodes: int
    most_nodes: int
    tasks: int | None
    per_node: int
    devices: int
    device_types: tuple[str, ...]
    cpus: int | None
    memory: int | None
    cpus_per_task: int | None
    gpus_per_task: int | None


def read_sizes(given: Section, context: Context) -> Sizes:
    """Parse all options about the size of a job."""
    tasks = _count(given, "--ntasks")
    per_node = _count(given, "--ntasks-per-node")
    least, most = given.read("--nodes", lambda value: read_nodes(str(value))) or (0, 0)
    if not least:
        least = most = _nodes_of(given, tasks, per_node)
    per_node = per_node or (math.ceil(tasks / least) if tasks else 1)
    by_task = given.has("--gpus-per-task") and given.peek("--gpu-bind") != "none"
    gpus = _gpus(given, least, per_node)
    types = context.types_named(filter(None, gpus))
    devices = sum(gpus.values())
    if len(gpus) > 1:
        words = phrase("slurm-several-types")
        given.at("--gres").refuse(
            ",".join(filter(None, gpus)), words, phrase("slurm-ask-one-type"), "conflict"
        )
    types = _constraint(given, context, types)
    per_task = _count(given, "--cpus-per-task")
    cpus = _cpus(given, per_task, per_node, devices)
    memory = _memory(given, cpus or per_node, devices)
    is_bound = any(map(given.has, ("--reservation", "--switches"))) or bool(types)
    if devices == 0 and most <= least and not is_bound:
        own = {"cpus": cpus or per_node, "memory": memory}
        if context.runs_without_devices(own):
            return Sizes(
                nodes=least, most_nodes=least, tasks=tasks, per_node=per_node, devices=0,
                device_types=(), cpus=own["cpus"], memory=memory, cpus_per_task=per_task,
                gpus_per_task=None,
            )  # fmt: skip
    if devices == 0:
        given.report.warn(given.at("--gres"), phrase("import-no-gpu"))
    return Sizes(
        nodes=least,
        most_nodes=max(least, most),
        tasks=tasks,
        per_node=per_node,
        devices=devices or 1,
        device_types=types,
        cpus=cpus,
        memory=memory,
        cpus_per_task=per_task,
        gpus_per_task=devices // per_node if by_task and devices else None,
    )


def _count(given: Section, option: str, most: int = 4096) -> int | None:
    return given.read(option, lambda value: read_count(str(value), most))


def _nodes_of(given: Section, tasks: int | None, per_node: int | None) -> int:
    """Return the number of nodes of a job without ``--nodes``."""
    if tasks and per_node:
        return max(1, math.ceil(tasks / per_node))
    if tasks and tasks > 1:
        given.report.warn(given.at("--ntasks"), phrase("slurm-tasks-without-nodes"))
    elif given.peek("--gpus") not in (None, "1"):
        given.report.warn(given.at("--gpus"), phrase("slurm-gpus-without-nodes"))
    return 1


def _gpus(given: Section, nodes: int, per_node: int) -> dict[str, int]:
    """Return the GPUs of each node by type, from any of the options for GPUs."""
    found: dict[str, Any] = {}
    gres, others = given.read("--gres", lambda value: read_gres(str(value))) or ({}, [])
    for other in others:
        words = phrase("slurm-resource")
        given.report.leave_out(given.at("--gres"), other, words, needed=True)
    for option, times, divisor in (
        ("--gpus-per-node", 1, 1),
        ("--gpus-per-task", per_node, 1),
        ("--gpus", 1, nodes),
    ):
        wanted = given.read(option, lambda value: read_gpus(str(value)))
        if wanted and any(number * times % divisor for number in wanted.values()):
            words = phrase("slurm-not-divisible", nodes=nodes)
            total = sum(wanted.values()) * times
            given.at(option).refuse(total, words, phrase("slurm-use-gpus-per-node"), "conflict")
        elif wanted:
            found[option] = {kind: number * times // divisor for kind, number in wanted.items()}
    if gres:
        found["--gres"] = gres
    return _agreed(given, found)


def _agreed(given: Section, found: dict[str, dict[str, int]]) -> dict[str, int]:
    """Return the GPUs by type; report a fault if several options differ."""
    if not found:
        return {}
    option, chosen = next(iter(found.items()))
    for other, wanted in found.items():
        if sum(wanted.values()) != sum(chosen.values()):
            words = phrase("slurm-gpus-differ", option=option)
            given.at(other).refuse(
                sum(wanted.values()), words, phrase("import-keep-one"), "conflict"
            )
        elif any(wanted) and not any(chosen):
            chosen = wanted
    return {kind: number for kind, number in chosen.items() if number}


def _constraint(given: Section, context: Context, types: tuple[str, ...]) -> tuple[str, ...]:
    """Return the device types among the features of ``--constraint``; report other features."""
    text = given.text("--constraint")
    if text is None:
        return types
    names = text.strip("[]").split("|")
    if all(context.knows_type(name) for name in names) and not types:
        return context.types_named(names)
    words = phrase("slurm-features")
    given.report.leave_out(given.at("--constraint"), text, words, needed=True)
    return types


def _cpus(given: Section, per_task: int | None, per_node: int, devices: int) -> int | None:
    per_gpu = _count(given, "--cpus-per-gpu")
    least = _count(given, "--mincpus")
    wanted = [
        per_task * per_node if per_task else 0,
        per_gpu * max(devices, 1) if per_gpu else 0,
        least or 0,
        per_node if per_node > 1 else 0,
    ]
    return max(wanted) or None


def _memory(given: Section, cpus: int, devices: int) -> int | None:
    found: dict[str, int] = {}
    for option, times in (
        ("--mem", 1),
        ("--mem-per-cpu", cpus),
        ("--mem-per-gpu", max(devices, 1)),
    ):
        size = given.read(option, lambda value: read_size(str(value)))
        if size == 0:
            words = phrase("slurm-memory-all")
            given.report.warn(given.at(option), words)
        elif size:
            found[option] = size * times
    if len(found) > 1:
        refusal = RefusalError(
            phrase("slurm-memory-options"), phrase("import-keep-one-of-them"), "conflict"
        )
        given.at(list(found)[-1]).note(None, refusal)
    return next(iter(found.values()), None)
