"""Search in the whole log of a rank: a part of the page of logs, one chunk at a time."""

from typing import Final

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from portal.web.viewing import PageRequest, page
from scheduling.jobs.services.ownership import note_log_read
from tenants.errors import InvalidError
from workers.conf import worker_settings
from workers.selectors import search_log
from workers.services.logs import MOST_HITS, LogHit

MOST_STRETCHES: Final = 4
"""Of 1 MiB each, looked at for one request; the part asks for the next ones by itself."""


@require_safe
@page
def search(request: PageRequest, job_id: int) -> HttpResponse:
    """Return matching lines, and the end of the searched range."""
    query = request.http.GET
    role, _, rank = query.get("stream", "").rpartition(":")
    offset = begun = _number(query.get("offset", "0"))
    hits: list[LogHit] = []
    for _ in range(MOST_STRETCHES):
        piece, found = search_log(
            request.viewer,
            job_id,
            wanted=query.get("q", ""),
            logs_dir=worker_settings().logs_dir,
            role=role,
            rank=_number(rank or "0"),
            offset=offset,
        )
        hits += found
        has_more = not piece.end and piece.next_offset > offset
        offset = piece.next_offset
        if not has_more or len(hits) >= MOST_HITS:
            break
    note_log_read(viewer=request.viewer, job_id=job_id)
    context = {
        "job_id": job_id,
        "hits": hits,
        "more": {"q": query.get("q", ""), "stream": query.get("stream", ""), "offset": offset}
        if has_more
        else None,
        "looked": offset,
        "size": piece.size,
        "is_first": begun == 0,
    }
    return request.render("job/_log_hits.html", context)


def _number(given: str) -> int:
    if given.isascii() and given.isdecimal() and len(given) < 16:
        return int(given)
    raise InvalidError(
        "This is not a number that can be used here.", field="offset", value=given[:40]
    )
