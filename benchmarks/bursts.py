"""The control plane's part of a burst of short jobs: statements and processor time by part.

Run by hand: ``python -m benchmarks.bursts [--waves N] [--profile PART]``; prints JSON entries.
Jobs of one device fill three nodes of eight devices, wave after wave. The benchmark reports their
progress through a turn of the node service, like nodes. Processes on nodes are not part of it, see
``benchmarks.latency``. Times are processor times, so that other programs disturb them little.
"""

import argparse
import cProfile
import json
import os
import pstats
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from benchmarks.entries import entry
from benchmarks.rounds import installation

NODES: Final = 3
WAVE: Final = NODES * 8
PARTS: Final = ("submit", "round", "claim-prepare", "prepared", "running", "exited")
DOCUMENT: Final = {
    "name": "bench",
    "virtual_cluster": "vision-a",
    "roles": {"worker": {"instances": 1, "devices": 1, "command": "true"}},
}


@dataclass(slots=True)
class BurstCost:
    """Cost of each part.

    Attributes:
        seconds: processor seconds by part.
        statements: number of each SQL text by part.
        profile: profiles of one part; None without.
    """

    profiled: str = ""
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    statements: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    profile: cProfile.Profile = field(default_factory=cProfile.Profile)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure the block as a part of the burst."""
        from django.db import connection

        def count(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            self.statements[name][sql] += 1
            return execute(sql, *rest)

        began = time.process_time()
        with connection.execute_wrapper(count):
            if name == self.profiled:
                self.profile.enable()
            try:
                yield
            finally:
                self.profile.disable()
        self.seconds[name] += time.process_time() - began


def measure(waves: int, *, profiled: str = "") -> tuple[list[dict[str, Any]], BurstCost]:
    """Run some waves after one to warm up; return the entries and the costs."""
    with installation() as folder:
        _fill()
        _wave(0, BurstCost(), folder)
        spent = BurstCost(profiled=profiled)
        for number in range(1, waves + 1):
            _wave(number, spent, folder)
    return entries(spent, waves), spent


def entries(spent: BurstCost, waves: int) -> list[dict[str, Any]]:
    """Return milliseconds per job and statements per wave of each part, and of all."""
    jobs = waves * WAVE
    context = f"{jobs} jobs of one device in waves of {WAVE}, SQLite"
    rows = []
    for part in PARTS:
        number = sum(spent.statements[part].values()) / waves
        rows += [
            entry(f"burst_ms_{part}", 1e3 * spent.seconds[part] / jobs, "ms", "lower", context),
            entry(f"burst_statements_{part}", number, "", "lower", f"a wave; {context}"),
        ]
    total = 1e3 * sum(spent.seconds.values()) / jobs
    rows.append(entry("burst_ms_all", total, "ms", "lower", context))
    return rows


def _fill() -> None:
    from tenants.roles import Role
    from tests.factories.cluster import make_cluster, make_priority_classes, make_virtual_cluster
    from tests.factories.tenants import make_tenant

    make_cluster(NODES)
    make_priority_classes()
    make_virtual_cluster("vision-a", make_tenant("vision", alice=Role.MEMBER), cells=NODES)


def _wave(number: int, spent: BurstCost, folder: Path) -> None:
    """Let one wave of jobs pass all steps."""
    from scheduling.runs.models import Member
    from tests.factories.cluster import NOW

    at = NOW + timedelta(seconds=10.0 * number)
    with spent.part("submit"):
        _submit(at)
    with spent.part("round"):
        _run_round(at)
    members = list(Member.objects.filter(attempt__ended_at=None).order_by("pk"))
    if len(members) != WAVE:
        raise RuntimeError(f"{len(members)} of {WAVE} jobs started")
    with spent.part("claim-prepare"):
        _turn((), at, folder)
    with spent.part("prepared"):
        _turn(_prepared(members), at, folder)
    with spent.part("running"):
        _turn(_started(members, at), at, folder)
    with spent.part("exited"):
        _turn(_exited(members, at), at, folder)
    if Member.objects.filter(attempt__ended_at=None).exists():
        raise RuntimeError("some jobs have not ended")


def _submit(at: datetime) -> None:
    from scheduling.jobs.queries.submit_context import read_submit_context
    from scheduling.jobs.services.submission import Submission, submit_jobs
    from tests.factories.tenants import make_viewer

    viewer = make_viewer("alice")
    submit_jobs(
        submissions=[Submission(document=DOCUMENT)] * WAVE,
        viewer=viewer,
        submit_context=read_submit_context(viewer=viewer, images_ignored=False),
        now=at,
    )


def _run_round(at: datetime) -> None:
    from scheduling.rounds.services.rounds import run_round
    from scheduling.rounds.snapshot import RoundConfig
    from scheduling.tasks import store_evidence

    config = RoundConfig(round_seconds=10.0, images_required=True, using="default")
    run_round(now=lambda: at, config=config, store=store_evidence)


def _turn(news: Sequence[Any], at: datetime, folder: Path) -> None:
    from scheduling.clusters.models import Node
    from workers.conf import WorkerSettings
    from workers.models import NodeLease
    from workers.services.turns import take_turn

    nodes = list(Node.objects.values_list("pk", flat=True))
    NodeLease.objects.bulk_create(
        [
            NodeLease(node_id=pk, owner="service", epoch=1, expires_at=at + timedelta(hours=1))
            for pk in nodes
        ],
        ignore_conflicts=True,
    )
    found = take_turn(
        owner="service",
        epochs=dict.fromkeys(nodes, 1),
        news=news,
        listening=nodes,
        busy=(),
        settings=WorkerSettings(data_dir=folder, installation="here"),
        now=at,
    )
    if found.failed:
        raise RuntimeError(f"{len(found.failed)} reports were not written")


def _prepared(members: Sequence[Any]) -> list[Any]:
    from workers.services.node_reports import Prepared

    return [Prepared(node_id=one.node_id, member_id=one.pk) for one in members]


def _started(members: Sequence[Any], at: datetime) -> list[Any]:
    from workers.services.node_reports import Running

    return [
        Running(node_id=one.node_id, member_id=one.pk, pid=one.pk, boot_id="boot", started_at=at)
        for one in members
    ]


def _exited(members: Sequence[Any], at: datetime) -> list[Any]:
    from tessera import protocol
    from workers.services.node_reports import Exited

    record = protocol.ExitRecord(
        cause=protocol.CAUSE_EXITED, failure="", at=at.timestamp(), code=0
    )
    return [Exited(node_id=one.node_id, member_id=one.pk, record=record) for one in members]


def main() -> None:
    """Print the entries; with ``--profile``, also the costs inside one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waves", type=int, default=20)
    parser.add_argument("--profile", choices=PARTS, default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TESSERA_DATA_DIR"] = folder
        os.environ["TESSERA_REDIS_URL"] = "memory://"
        os.environ["DJANGO_SETTINGS_MODULE"] = "portal.settings"
        import django

        django.setup()
        found, spent = measure(options.waves, profiled=options.profile)
    print(json.dumps(found, indent=2))
    if options.profile:
        stats = pstats.Stats(spent.profile, stream=sys.stderr)
        stats.sort_stats("cumulative").print_stats(40)
        for sql, number in spent.statements[options.profile].most_common():
            print(f"{number / options.waves:6.1f}  {sql[:160]}", file=sys.stderr)


if __name__ == "__main__":
    main()
