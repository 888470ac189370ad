"""Rounds at scale: a cluster of simulated nodes in a separate database.

Run by hand: ``python -m benchmarks.rounds``, or ``--nodes 2000 --live 10000 --rounds 10`` for
another size; prints JSON entries, one a line. No processes run on nodes: the benchmark reports the
progress of jobs (prepared, running, ended) through the services, like a node.
"""

import argparse
import json
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.entries import entry, p95

ROUNDS = 40
ENDED_PER_ROUND = 25
VIRTUAL_CLUSTERS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a cluster and its queue.

    Attributes:
        nodes: machines of eight devices.
        running: jobs that hold devices when the rounds begin.
        queued: jobs that wait.
    """

    name: str
    nodes: int
    running: int
    queued: int


SMALL = Size(name="1k_queued_200_nodes", nodes=200, running=400, queued=1_000)
LARGE = Size(name="10k_live_2k_devices", nodes=250, running=1_000, queued=9_000)


def measure(
    sizes: Sequence[Size] = (SMALL, LARGE), rounds: int = ROUNDS
) -> Iterator[dict[str, Any]]:
    """Yield all entries, as in ``results/latest.json``, as soon as they are known."""
    for size in sizes:
        with installation():
            _fill(size)
            yield from _measure_rounds(size, rounds)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield entry("rounds_peak_memory", memory, "MiB", "lower", "this benchmark")


@contextmanager
def installation() -> Iterator[Path]:
    """An empty, migrated SQLite installation in a temporary folder."""
    from django.core.management import call_command
    from django.db import connections

    with tempfile.TemporaryDirectory() as folder:
        for connection in connections.all():
            connection.close()
            connection.settings_dict["NAME"] = str(Path(folder) / "db.sqlite3")
        call_command("migrate", verbosity=0)
        yield Path(folder)
        connections.close_all()


def _fill(size: Size) -> None:
    from scheduling.jobs.models import Job
    from tests.factories.cluster import NOW, make_cluster, make_priority_classes
    from tests.factories.tenants import make_user

    rng = random.Random(7)
    make_cluster(size.nodes)
    make_priority_classes()
    make_user("root", is_cluster_admin=True)
    clusters = _make_clusters(size)
    rows = [
        _job_row(rng.choice(clusters), NOW + timedelta(seconds=number), rng)
        for number in range(size.running + size.queued)
    ]
    Job.objects.unscoped().bulk_create(rows, batch_size=500)


def _make_clusters(size: Size) -> list[tuple[Any, int]]:
    from tenants.models import User
    from tenants.roles import Role
    from tests.factories.cluster import make_virtual_cluster
    from tests.factories.tenants import make_tenant

    made = []
    for number in range(VIRTUAL_CLUSTERS):
        tenant = make_tenant(f"tenant-{number}", **{f"user{number}": Role.LEAD})
        cluster = make_virtual_cluster(
            f"vc-{number}", tenant, cells=size.nodes // VIRTUAL_CLUSTERS
        )
        made.append((cluster, User.objects.get(username=f"user{number}").pk))
    return made


def _job_row(owned: tuple[Any, int], at: Any, rng: random.Random) -> Any:
    from scheduling.core.jobspec import demand, parse
    from scheduling.jobs.models import Job
    from tests.factories.cluster import job_document

    cluster, owner_id = owned
    devices = rng.choice([1, 1, 1, 2, 4, 8])
    instances = rng.choice([1, 1, 1, 2])
    opportunistic = rng.random() < 0.2
    document = job_document(
        virtual_cluster=cluster.name,
        worker={"devices": devices, "instances": instances},
        **{"class": "opportunistic" if opportunistic else "guaranteed"},
    )
    spec = parse(document)
    return Job(
        name=spec.name,
        tenant_id=cluster.tenant_id,
        virtual_cluster=cluster,
        owner_id=owner_id,
        state_since=at,
        job_class=spec.job_class.value,
        priority=-1 if opportunistic else rng.choice([10, 100]),
        spec=spec.to_json(),
        demand=demand(spec).to_json(),
        devices=devices * instances,
        submitted_at=at,
    )


def _measure_rounds(size: Size, rounds: int) -> list[dict[str, Any]]:
    from tests.factories.cluster import NOW

    now = NOW + timedelta(days=1)
    seconds, parts = [], []
    for number in range(rounds + 1):
        at = now + timedelta(minutes=number)
        if number:
            end_some_jobs(at)
        begun = time.perf_counter()
        parts.append(_run_round(at))
        seconds.append(time.perf_counter() - begun)
    # The first round places everything at once on an empty cluster; it is reported by itself.
    context = f"{size.nodes} nodes of 8 devices, {size.running + size.queued} live jobs, SQLite"
    entries = [
        entry(f"first_round_{size.name}", seconds[0] * 1e3, "ms", "lower", context),
        entry(
            f"round_p95_{size.name}", p95(seconds[1:]) * 1e3, "ms", "lower",
            f"{context}; {ENDED_PER_ROUND} jobs end before each of {rounds} rounds",
        ),
    ]  # fmt: skip
    for part in ("read", "decide", "commit"):
        median = statistics.median(timings[part] for timings in parts[1:])
        entries.append(entry(f"round_{part}_median_{size.name}", median, "ms", "lower", context))
    return entries


def _run_round(at: Any) -> dict[str, float]:
    from scheduling.rounds.models import Round
    from scheduling.rounds.services.rounds import run_round
    from scheduling.rounds.snapshot import RoundConfig
    from scheduling.tasks import store_evidence

    config = RoundConfig(round_seconds=10.0, images_required=True, using="snapshot")
    outcome = run_round(now=lambda: at, config=config, store=store_evidence)
    timings: dict[str, float] = Round.objects.get(number=outcome.number).timings_ms
    return timings


def end_some_jobs(at: Any, count: int = ENDED_PER_ROUND) -> None:
    """Report that the oldest running jobs have succeeded."""
    from django.db import transaction

    from scheduling.runs.models import Attempt
    from scheduling.runs.services import attempts
    from tessera import protocol

    record = protocol.ExitRecord(
        cause=protocol.CAUSE_EXITED, failure="", at=at.timestamp(), code=0
    )
    first = list(Attempt.objects.filter(ended_at=None).order_by("id")[:count])
    with transaction.atomic():
        for attempt in first:
            for member in attempt.members.all():
                attempts.mark_exited(member_id=member.pk, record=record, now=at)


def main() -> None:
    """Print the entries as they come."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=0)
    parser.add_argument("--live", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    sizes = [SMALL, LARGE]
    if options.nodes:
        name = f"{options.live}_live_{options.nodes}_nodes"
        sizes = [Size(name=name, nodes=options.nodes, running=0, queued=options.live)]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TESSERA_DATA_DIR"] = folder
        os.environ["TESSERA_REDIS_URL"] = "memory://"
        os.environ["TESSERA_ALLOWED_HOSTS"] = "testserver,localhost"
        os.environ["DJANGO_SETTINGS_MODULE"] = "portal.settings"
        import django

        django.setup()
        from portal.memory import settle

        settle()
        for entry in measure(sizes, options.rounds):
            print(json.dumps(entry), flush=True)


if __name__ == "__main__":
    main()
