"""Documents of the scheduler are stored as JSON of Django."""

import pytest
from django.db import connection, models
from django.db.models import F

from scheduling.document_field import DocumentField
from scheduling.jobs.models import Job
from tests.factories.cluster import make_cluster, make_job, make_virtual_cluster

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("document", [{}, {"a": [1, None, "é"]}])
def test_a_document_is_read_as_it_was_written(document):
    make_cluster()
    make_virtual_cluster("vision-a", cells=1)
    job = make_job()
    Job.objects.unscoped().filter(pk=job.pk).update(reason=document)

    assert Job.objects.unscoped().values_list("reason", flat=True).get() == document
    assert Job.objects.unscoped().values_list(F("reason__a"), flat=True).get() == document.get("a")


def test_text_that_orjson_rejects_is_decoded_as_by_django():
    assert DocumentField().from_db_value('["\\ud800"]', None, connection) == ["\ud800"]


def test_migrations_see_a_field_of_django():
    field = DocumentField(default=dict)

    assert field.deconstruct()[1] == models.JSONField().deconstruct()[1]
    assert field.db_type(connection) == models.JSONField().db_type(connection)
