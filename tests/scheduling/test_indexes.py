"""Indexes cost each row that is written."""

import pytest
from django.db import connection
from django.db.models import Model

from scheduling.jobs.models import Job, JobEvent
from tenants.models import AuditEntry

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("model", [Job, JobEvent, AuditEntry])
def test_no_index_that_a_submit_writes_is_the_beginning_of_another(model: type[Model]):
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, model._meta.db_table)
    partial = {
        rule.name
        for rule in (*model._meta.indexes, *model._meta.constraints)
        if getattr(rule, "condition", None) is not None
    }
    indexes = {
        name: tuple(index["columns"])
        for name, index in found.items()
        if index["index"] and name not in partial
    }

    needless = [
        (name, other)
        for name, columns in indexes.items()
        for other, longer in indexes.items()
        if name != other and longer[: len(columns)] == columns
    ]

    assert indexes
    assert needless == []
