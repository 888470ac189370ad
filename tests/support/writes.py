"""What a piece of code writes, and in which order."""

from django.db import models
from django.test.utils import CaptureQueriesContext

_WRITING = ("INSERT", "UPDATE", "DELETE")


def writes_to(
    asked: CaptureQueriesContext, *shared: type[models.Model]
) -> list[type[models.Model] | None]:
    """Of each statement that wrote, in order, to which of ``shared``; None: to something else."""
    texts = [query["sql"].lstrip() for query in asked.captured_queries]
    return [
        next((model for model in shared if model._meta.db_table in text), None)
        for text in texts
        if text.startswith(_WRITING)
    ]
