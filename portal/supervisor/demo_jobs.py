"""The demo's first two jobs: real training, submitted by a demo user like any other job."""

import gzip
import io
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from portal.supervisor.options import ROOT
from scheduling.clusters.queries.virtual_clusters import virtual_cluster_for
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.jobs.services.archives import store_archive
from scheduling.jobs.services.idempotency import IdempotencyConflictError
from scheduling.jobs.services.submission import Submission, submit_job
from tenants.models import User
from tenants.selectors import viewer_of
from tenants.viewers import Viewer
from workers.conf import ARCHIVES_DIR, WorkerSettings

EXAMPLES: Final = ROOT / "examples"
DIGITS: Final = "digits_numpy.py"
GANG: Final = "gang_allreduce_numpy.py"


def submit_examples(settings: WorkerSettings, now: datetime) -> None:
    """Submit both jobs; a second call submits nothing."""
    jobs = (
        ("alice", "vision-a", "digits", DIGITS, 1, 1),
        ("bob", "language-a", "gang", GANG, 2, 2),
    )
    for username, cluster, name, script, instances, devices in jobs:
        viewer = viewer_of(User.objects.get(username=username))
        digest = _store_script(viewer, cluster, EXAMPLES / script, settings, now)
        role = {"instances": instances, "devices": devices, "command": f"python3 {script}"}
        document = {
            "name": name,
            "note": "An example that comes with the demo.",
            "virtual_cluster": cluster,
            "source": {"archive": digest},
            "roles": {"worker": role},
        }
        _submit(document, viewer, now)


def _submit(document: Mapping[str, Any], viewer: Viewer, now: datetime) -> None:
    # One of an earlier version, with another script, is left unchanged.
    with suppress(IdempotencyConflictError):
        submit_job(
            submission=Submission(document=document),
            viewer=viewer,
            ground=read_submit_context(viewer=viewer, images_ignored=True),
            now=now,
            idempotency_key=f"demo-{document['name']}",
        )


def _store_script(
    viewer: Viewer, cluster: str, script: Path, settings: WorkerSettings, now: datetime
) -> str:
    """Upload a script as its owner would; returns the archive's digest."""
    row, _ = store_archive(
        viewer=viewer,
        tenant_id=virtual_cluster_for(viewer, cluster).tenant_id,
        name=f"{script.stem}.tar.gz",
        content=[_packed(script)],
        archives_dir=settings.data_dir / ARCHIVES_DIR,
        now=now,
    )
    return row.sha256


def _packed(script: Path) -> bytes:
    """Return an archive with one file, deterministically."""
    content = script.read_bytes()
    entry = tarfile.TarInfo(script.name)
    entry.size, entry.mode = len(content), 0o644
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), mtime=0)
