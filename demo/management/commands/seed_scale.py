"""``manage.py seed_scale``: fills an installation with synthetic content for benchmarks."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from demo.scale import cluster, finished, jobs
from scheduling.clusters.models import Node, VirtualCluster
from scheduling.clusters.services.priority_classes import make_usual_classes
from scheduling.jobs.models import Job
from scheduling.usage.services.usage import sum_all_usage
from tenants.clock import database_now
from tenants.viewers import Viewer


class Command(BaseCommand):
    """Fill an empty database; refused if it already has jobs or nodes."""

    help = (
        "Fill an empty installation with generated nodes, users and jobs, for measurements at "
        "scale."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--nodes", type=int, default=250, help="of eight devices each")
        parser.add_argument("--live", type=int, default=10_000, help="running or queued jobs")
        parser.add_argument("--finished", type=int, default=100_000, help="in thousands")
        parser.add_argument("--force", action="store_true", help="add them to real jobs and nodes")

    def handle(self, *, nodes: int, live: int, finished: int, force: bool, **_: Any) -> None:
        """Create the content, and print the passwords of new users."""
        _refuse(nodes=nodes, live=live, finished=finished, is_forced=force)
        for name, password in fill(nodes=nodes, live=live, ended=finished).items():
            self.stdout.write(f"Account {name}: {password}")
        self.stdout.write(f"Created {nodes} nodes, {live} live and {finished} finished jobs.")


def fill(*, nodes: int, live: int, ended: int) -> dict[str, str]:
    """Create the content; return the passwords of new users by name."""
    now = database_now()
    made = dict(cluster.make_people())
    make_usual_classes(viewer=Viewer.system("seed_scale"))
    cluster.make_cluster(nodes=nodes, now=now)
    jobs.make_live_jobs(count=live, now=now)
    jobs.start_what_fits(now=now)
    finished.add_finished_jobs(now=now, count=ended)
    sum_all_usage(now=now)
    return made


def _refuse(*, nodes: int, live: int, finished: int, is_forced: bool) -> None:
    if nodes < 1 or live < 1 or finished % 1_000:
        raise CommandError(
            "--nodes and --live must be at least 1; --finished must be a multiple of 1000"
        )
    if VirtualCluster.objects.unscoped().filter(name__startswith="scale-").exists():
        raise CommandError("this installation was filled before; no changes were made")
    if not is_forced and (Job.objects.unscoped().exists() or Node.objects.exists()):
        raise CommandError(
            "the installation already has jobs or nodes, and generated ones cannot be "
            "distinguished from them later; no changes were made. Use --force to add them anyway"
        )
