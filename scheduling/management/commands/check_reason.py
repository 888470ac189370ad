"""Checks why a job is queued against the stored snapshot of its round."""

import json
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from scheduling.estimates.services.explanations import checked_reason
from scheduling.jobs.models import Job
from scheduling.storage.opening import open_storage
from tenants.errors import NotFoundError


class Command(BaseCommand):
    """Prints the certificate of a job's reason; fails when it does not hold."""

    help = "Checks why a job is queued against the stored snapshot of its round."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add arguments for the job and the round; the default is the newest round."""
        parser.add_argument("job", type=int, help="job ID")
        parser.add_argument("--round", type=int, default=None, help="number of the round")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the certificate as JSON."""
        job = Job.objects.unscoped().filter(pk=options["job"]).first()
        if job is None:
            raise CommandError(f"Job {options['job']} not found.")
        number = options["round"]
        try:
            found = checked_reason(
                job=job,
                storage=open_storage(settings.TESSERA.storage),
                number=number if isinstance(number, int) else None,
            )
        except NotFoundError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(json.dumps(found.certificate.to_json(), indent=2, ensure_ascii=False))
        if not found.holds:
            raise CommandError(
                "The reason is not valid: the round decides differently on that snapshot."
            )
        self.stdout.write(
            f"The reason is valid for round {found.certificate.round_number} ({found.file})."
        )
