"""Trainings of small models by logical workers in phases of several processes, with resizes and
kills.

Processes are forked from a server that has imported PyTorch, so that a phase starts quickly.
"""

import faulthandler
import json
import multiprocessing
import os
import random
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.two_nodes import HERE, Node

PATIENCE = 180.0
"""Seconds after which a process counts as hanging; less than the time limit of a test."""
STEPS, EVERY = 24, 4
SAMPLES, BATCH = 192, 4
FREE_IN_NAMESPACES = 29511
PRELOADED = ["torch", "torch.distributed", "torch.utils.data", "torch._dynamo", "numpy"]


@dataclass(frozen=True)
class Phase:
    """Processes that train together until they finish, leave, or one of them is killed.

    Attributes:
        processes: number of processes.
        leave_after: the step after which the job gets a notice to leave; -1 for never.
        kill_in: the step in the middle of which a process is killed; -1 for never.
        victim: index of the killed process.
        layout: number of workers of each process; even if empty.
        wishes: requests of the control plane by step.
        nodes: number of nodes of the processes.
    """

    processes: int = 1
    leave_after: int = -1
    kill_in: int = -1
    victim: int = 0
    layout: tuple[int, ...] = ()
    wishes: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    nodes: tuple[Node, ...] = (HERE,)

    def node_of(self, rank: int) -> Node:
        """Return the node of a rank; ranks are ordered by node, as in a gang."""
        return self.nodes[rank * len(self.nodes) // self.processes]


@dataclass(frozen=True)
class Training:
    """Model and directories of a training.

    Attributes:
        model: name of one of the models below.
        workers: logical workers.
        directory: directory of checkpoints, reports and the control file.
        without: a state that is not captured, to check that its absence has an effect.
    """

    model: str
    workers: int
    directory: Path
    without: str = ""
    loading_processes: int = 0


def run(training: Training, phases: Sequence[Phase]) -> dict[int, str]:
    """Run the phases one after the other; return the checkpoint hash by step."""
    training.directory.mkdir(parents=True, exist_ok=True)
    for phase in phases:
        for name in ("control.json", "batch.json"):
            (training.directory / name).unlink(missing_ok=True)
        codes = _run_phase(training, phase)
        if phase.kill_in >= 0:
            assert codes[phase.victim] == -signal.SIGKILL, codes
        else:
            assert codes == [0] * phase.processes, codes
    return hashes(training.directory)


def hashes(directory: Path) -> dict[int, str]:
    """Return the hash by step of all reported checkpoints."""
    found: dict[int, str] = {}
    for told in events(directory, "checkpoint"):
        earlier = found.setdefault(told["step"], told["sha256"])
        assert earlier == told["sha256"], f"step {told['step']} came out in two ways"
    return found


def random_phases(
    seed: int,
    *,
    resizes: int,
    kills: int,
    most: int,
    workers: int,
    nodes: Sequence[Node] = (HERE,),
) -> list[Phase]:
    """Return phases with this many resizes and kills at random steps; the last one runs to the
    end.

    Half of them have an uneven layout, and in some of them workers move during the phase.
    """
    chance = random.Random(seed)
    ends = sorted(chance.sample(range(1, STEPS - 1), resizes + kills))
    killing = set(chance.sample(range(len(ends)), kills))
    phases, before = [], 0
    for index, step in enumerate(ends):
        processes = chance.choice([n for n in range(1, most + 1) if n != before])
        before = processes
        phase = Phase(
            processes=processes,
            layout=_random_layout(chance, workers, processes) if chance.random() < 0.5 else (),
            wishes={step - 1: {"layout": [list(_random_layout(chance, workers, processes))]}},
            nodes=tuple(nodes),
        )
        if index in killing:
            phases.append(replace(phase, kill_in=step, victim=chance.randrange(processes)))
        else:
            phases.append(replace(phase, leave_after=step))
    return [*phases, Phase(processes=chance.randint(1, most), nodes=tuple(nodes))]


def _random_layout(chance: random.Random, workers: int, processes: int) -> tuple[int, ...]:
    cuts = sorted(chance.randint(0, workers) for _ in range(processes - 1))
    return tuple(high - low for low, high in pairwise([0, *cuts, workers]))


def _run_phase(training: Training, phase: Phase) -> list[int | None]:
    port = FREE_IN_NAMESPACES if phase.nodes[0].namespace else 0
    return together(_train, phase.processes, training, phase, port=port)


def together(
    target: Callable[..., None],
    processes: int,
    *arguments: Any,
    port: int = 0,
    patience: float = PATIENCE,
) -> list[int | None]:
    """Run a function in several processes concurrently; return their exit codes.

    Its arguments are the given ones, the rank of the process, and a port (a free one by default).

    Raises:
        AssertionError: a process hangs; the message contains its stacks.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    port = port or _free_port()
    with tempfile.TemporaryDirectory() as scratch:
        stacks = [Path(scratch, f"rank{rank}") for rank in range(processes)]
        running = [
            context.Process(
                target=_watched, args=(stacks[rank], patience, target, *arguments, rank, port)
            )
            for rank in range(processes)
        ]
        for process in running:
            process.start()
        try:
            for process in running:
                process.join(patience + 15.0)  # it exits earlier
        finally:
            codes = [process.exitcode for process in running]
            for process in running:
                if process.is_alive():
                    process.kill()
                    process.join()
        told = [
            f"rank {path.name[4:]}: {path.read_text()}" for path in stacks if _has_content(path)
        ]
        assert not told, "\n".join(["these processes hung:", *told])
        return codes


def _watched(stacks: Path, patience: float, target: Callable[..., None], *arguments: Any) -> None:
    """Call a function; after the time limit, write the stacks of the process."""
    descriptor = os.open(stacks, os.O_WRONLY | os.O_CREAT)
    faulthandler.dump_traceback_later(patience, exit=True, file=descriptor)
    target(*arguments)


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def be_rank(rank: int, processes: int, port: int, directory: Path) -> None:
    """Set the environment of a job member in this process."""
    multiprocessing.set_start_method("fork", force=True)  # for loading processes, as in a script
    os.environ.update(
        {
            "RANK": str(rank),
            "TESSERA_JOB_RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TESSERA_JOB_REPORTS": str(directory / "reports.jsonl"),
            "TESSERA_JOB_CONTROL": str(directory / "control.json"),
            "TESSERA_JOB_BATCH": str(directory / "batch.json"),
            "TESSERA_JOB_CHECKPOINT_DIR": str(directory / "checkpoints"),
        }
    )


def write(path: Path, content: object) -> None:
    """Replace a file atomically."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(content))
    part.replace(path)


def events(directory: Path, name: str) -> list[dict[str, Any]]:
    """Return the reported events of one kind."""
    lines = (directory / "reports.jsonl").read_text().splitlines()
    return [told for told in map(json.loads, lines) if told.get("event") == name]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _train(training: Training, phase: Phase, rank: int, port: int) -> None:
    """Run one process of a phase."""
    directory = training.directory
    phase.node_of(rank).enter()
    be_rank(rank, phase.processes, port, directory)
    os.environ["MASTER_ADDR"] = phase.nodes[0].address
    from tests.support import elastic_models  # PyTorch, once it is forked

    elastic = elastic_models.make(
        training.model,
        workers=training.workers,
        layout=phase.layout or None,
        loading_processes=training.loading_processes,
        without=training.without,
    )
    for step in elastic.steps(STEPS, every=EVERY):
        if step == phase.leave_after and rank == phase.processes - 1:
            write(directory / "control.json", {"notice": "resize"})
        if step in phase.wishes and rank == 0:
            write(directory / "batch.json", phase.wishes[step])

        def forward(batch: Any, step: int = step) -> Any:
            if step == phase.kill_in and rank == phase.victim:
                os.kill(os.getpid(), signal.SIGKILL)
            return elastic_models.loss_of(elastic.model, batch)

        elastic.step(forward)
        random.random()  # like a script that logs occasionally
        if step == phase.kill_in and rank == phase.victim:  # it had no worker
            os.kill(os.getpid(), signal.SIGKILL)
