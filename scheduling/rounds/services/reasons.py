"""Writing the reasons of many waiting jobs in one statement, whatever their number."""

import json
from collections.abc import Mapping
from typing import Any, Final

from django.db import connection

from scheduling.core.lifecycle import JobState
from scheduling.core.reasons import Reason, ReasonCode
from scheduling.jobs.models import Job

MAX_TEXT: Final = 500
QUEUED: Final = JobState.QUEUED.value

# A CASE with a branch for each job costs the square of their number. PostgreSQL reads all rows
# from one parameter; for SQLite, which lives in this process, one statement is run over and over.
_SQLITE: Final = """
    UPDATE {table} SET reason_code = %s, reason_text = %s, reason = %s WHERE id = %s AND state = %s
"""
_POSTGRESQL: Final = """
    UPDATE {table} SET reason_code = new.code, reason_text = new.text, reason = new.detail
    FROM jsonb_to_recordset(%s::jsonb) AS new(id bigint, code text, text text, detail jsonb)
    WHERE {table}.id = new.id AND {table}.state = %s
"""


def store_reasons(reasons: Mapping[int, Reason]) -> None:
    """Write the reason of each job that is still queued."""
    if not reasons:
        return
    table = connection.ops.quote_name(Job._meta.db_table)
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.executemany(_SQLITE.format(table=table), _rows(reasons))
        else:
            cursor.execute(_POSTGRESQL.format(table=table), [_document(reasons), QUEUED])


def reason_detail(reason: Reason) -> dict[str, Any]:
    """What is stored besides code and text."""
    detail = reason.to_json()
    if reason.code is ReasonCode.WAITING_VICTIM_CHECKPOINT:
        detail["waiting_for"] = list(reason.blocked_by)
    return detail


def _rows(reasons: Mapping[int, Reason]) -> list[tuple[str, str, str, int, str]]:
    # Jobs that wait for the same share one reason, which is then spelled out once.
    spelled = {
        key: (reason.code.value, reason.text[:MAX_TEXT], json.dumps(reason_detail(reason)))
        for key, reason in {id(reason): reason for reason in reasons.values()}.items()
    }
    return [(*spelled[id(reason)], job_id, QUEUED) for job_id, reason in reasons.items()]


def _document(reasons: Mapping[int, Reason]) -> str:
    spelled = {
        key: {
            "code": reason.code.value,
            "text": reason.text[:MAX_TEXT],
            "detail": reason_detail(reason),
        }
        for key, reason in {id(reason): reason for reason in reasons.values()}.items()
    }
    return json.dumps(
        [{"id": job_id, **spelled[id(reason)]} for job_id, reason in reasons.items()]
    )
