"""The demo's first two jobs: real training, submitted by a demo user like any other job."""

import hashlib
import io
import tarfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from portal.supervisor.options import ROOT
from scheduling.models import SourceArchive, VirtualCluster
from scheduling.services.drafts import read_ground
from scheduling.services.submission import Submission, submit_job
from tenants.models import User
from tenants.tenancy import viewer_of
from workers.conf import WorkerSettings

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
        user = User.objects.get(username=username)
        tenant_id = VirtualCluster.objects.unscoped().get(name=cluster).tenant_id
        digest = _store_archive(settings, EXAMPLES / script, user, tenant_id, now)
        role = {"instances": instances, "devices": devices, "command": f"python3 {script}"}
        document = {
            "name": name,
            "note": "An example that comes with the demo.",
            "virtual_cluster": cluster,
            "source": {"archive": digest},
            "roles": {"worker": role},
        }
        _submit(document, user, now)


def _submit(document: Mapping[str, Any], user: User, now: datetime) -> None:
    viewer = viewer_of(user)
    submit_job(
        submission=Submission(document=document),
        viewer=viewer,
        ground=read_ground(viewer=viewer, images_ignored=True),
        now=now,
        idempotency_key=f"demo-{document['name']}",
    )


def _store_archive(
    settings: WorkerSettings, script: Path, user: User, tenant_id: int, now: datetime
) -> str:
    """Keep a script as an uploaded archive of its owner's.

    Returns:
        The archive's digest.
    """
    packed = _packed(script)
    digest = hashlib.sha256(packed).hexdigest()
    path = settings.archive(digest)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{digest}")
    partial.write_bytes(packed)
    partial.replace(path)
    SourceArchive.objects.unscoped().get_or_create(
        sha256=digest,
        tenant_id=tenant_id,
        defaults={
            "owner": user,
            "name": f"{script.stem}.tar",
            "size": len(packed),
            "created_at": now,
        },
    )
    return digest


def _packed(script: Path) -> bytes:
    """An archive with one file, the same bytes every time."""
    content = script.read_bytes()
    entry = tarfile.TarInfo(script.name)
    entry.size, entry.mode = len(content), 0o644
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
