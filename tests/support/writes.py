"""Records the order of database writes."""

from django.db import models
from django.test.utils import CaptureQueriesContext

_WRITING = ("INSERT", "UPDATE", "DELETE")


def writes_to(
    asked: CaptureQueriesContext, *shared: type[models.Model]
) -> list[type[models.Model] | None]:
    """Record for each writing statement the table among ``shared``; None for other tables."""
    texts = [query["sql"].lstrip() for query in asked.captured_queries]
    return [
        next((model for model in shared if model._meta.db_table in text), None)
        for text in texts
        if text.startswith(_WRITING)
    ]
