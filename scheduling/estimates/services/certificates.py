"""Certificates of reasons, from the newest stored round in which a job waited."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scheduling.core.explanations.certificates import Certificate, CertificateError, certify, check
from scheduling.core.messages import sentence
from scheduling.core.round.stored import UnreadableRoundError, read_stored
from scheduling.core.values import ClusterSnapshot, RoundResult
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from scheduling.rounds.services.evidence import read_round
from tenants.errors import NotFoundError

LOOKED_AT: Final = 3
"""Stored rounds that are read at most: files of a large cluster are not small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCertificate:
    """A certificate and whether it holds.

    Attributes:
        file: of the snapshot, below the data directory.
    """

    certificate: Certificate
    holds: bool
    file: str


def checked_reason(*, job: Job, data_dir: Path, number: int | None = None) -> CheckedCertificate:
    """The certificate of a job's reason, checked against its stored round.

    Args:
        job: the job; the caller has checked the rights.
        data_dir: directory of stored rounds.
        number: of the round; None: the newest one in which it waited.

    Raises:
        NotFoundError: it waited in no stored round.
    """
    rounds = Round.objects.exclude(snapshot_path="").filter(started_at__gte=job.submitted_at)
    if number is not None:
        rounds = rounds.filter(number=number)
    for stored in rounds.order_by("-number")[:LOOKED_AT]:
        snapshot, result = _read(data_dir, stored)
        if snapshot is None or result is None:
            continue
        try:
            found = certify(job.pk, snapshot, result, sha256=stored.snapshot_sha256)
        except CertificateError:
            continue
        return CheckedCertificate(
            certificate=found, holds=check(found, snapshot), file=stored.snapshot_path
        )
    raise NotFoundError(sentence("no-stored-wait"), field="id", value=job.pk)


def _read(data_dir: Path, stored: Round) -> tuple[ClusterSnapshot | None, RoundResult | None]:
    try:
        return read_stored(read_round(data_dir=data_dir, stored=stored))
    except (FileNotFoundError, ValueError, UnreadableRoundError):
        return None, None
