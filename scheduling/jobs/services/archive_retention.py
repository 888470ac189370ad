"""Forgetting uploaded archives that no job needs any more, and files that nobody knows of."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from django.db import transaction
from django.db.models import Q

from scheduling.core.lifecycle import TERMINAL
from scheduling.jobs.models import Job, SourceArchive

ARCHIVES_DIR: Final = "archives"
SETTLED: Final = timedelta(hours=1)


def prune_archives(*, archives_dir: Path, older_than: datetime, now: datetime) -> int:
    """Forget archives last used before ``older_than``: uploaded again, or named by a job.

    A job uses its archive until it ends. A file goes with the last row that names it; so does
    one that an upload left behind when it broke off.

    Args:
        archives_dir: where archives lie, each under its digest.
        older_than: the last use of what is forgotten.
        now: the present; files younger than an hour may belong to an upload and stay.

    Returns:
        How many archives were forgotten.
    """
    used = _used(older_than)
    old = [
        pk
        for pk, tenant, digest in SourceArchive.objects.unscoped()
        .filter(created_at__lt=older_than)
        .values_list("pk", "tenant_id", "sha256")
        if (tenant, digest) not in used
        and _touched(archives_dir / digest) < older_than.timestamp()
    ]
    with transaction.atomic():
        SourceArchive.objects.unscoped().filter(pk__in=old).delete()
    _sweep(archives_dir, (now - SETTLED).timestamp())
    return len(old)


def _used(since: datetime) -> set[tuple[int, str]]:
    """Tenants and digests of jobs that live, or have ended since."""
    jobs = Job.objects.unscoped().filter(
        ~Q(state__in=TERMINAL) | Q(finished_at__gte=since), spec__source__archive__isnull=False
    )
    return set(jobs.values_list("tenant_id", "spec__source__archive"))


def _sweep(archives_dir: Path, before: float) -> None:
    """Delete files that no row names, unless somebody uploads them just now."""
    if not archives_dir.is_dir():
        return
    named = set(SourceArchive.objects.unscoped().values_list("sha256", flat=True))
    for path in archives_dir.iterdir():
        if path.name not in named and path.is_file() and _touched(path) < before:
            path.unlink(missing_ok=True)


def _touched(path: Path) -> float:
    """When a file was uploaded last, in seconds since the epoch; 0 without one."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
