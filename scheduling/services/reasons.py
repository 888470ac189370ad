"""Writing the reasons of many waiting jobs in one statement, whatever their number."""

import json
from collections.abc import Mapping
from typing import Any, Final

from django.db import connection

from scheduling.core.lifecycle import JobState
from scheduling.core.reasons import Reason, ReasonCode
from scheduling.models import Job

MAX_TEXT: Final = 500

# A CASE with a branch for each job costs the square of their number; both databases can read the
# rows out of one JSON parameter instead.
_SQLITE: Final = """
    UPDATE {table} SET reason_code = new.value ->> 'code', reason_text = new.value ->> 'text',
        reason = new.value -> 'detail'
    FROM json_each(%s) AS new
    WHERE {table}.id = new.value ->> 'id' AND {table}.state = %s
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
    rows = [
        {
            "id": job_id,
            "code": reason.code.value,
            "text": reason.text[:MAX_TEXT],
            "detail": reason_detail(reason),
        }
        for job_id, reason in reasons.items()
    ]
    statement = _SQLITE if connection.vendor == "sqlite" else _POSTGRESQL
    table = connection.ops.quote_name(Job._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(statement.format(table=table), [json.dumps(rows), JobState.QUEUED.value])


def reason_detail(reason: Reason) -> dict[str, Any]:
    """What is stored besides code and text."""
    detail = reason.to_json()
    if reason.code is ReasonCode.WAITING_VICTIM_CHECKPOINT:
        detail["waiting_for"] = list(reason.blocked_by)
    return detail
