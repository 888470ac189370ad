"""The address at which a further control host fetches its environment, encrypted."""

import json
from http import HTTPStatus
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from tenants.audit import Actor
from tenants.clock import database_now
from tenants.services.joining import take_bundle

MOST_BYTES: Final = 1000


@csrf_exempt
@require_POST
def join(request: HttpRequest) -> HttpResponse:
    """Return the bundle of an ID once; 404 if there is none. Without its token it is useless."""
    try:
        asked = json.loads(request.read(MOST_BYTES))
        bundle_id = asked["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        bundle_id = None
    sealed = (
        take_bundle(bundle_id, now=database_now(), actor=Actor.system("tessera join"))
        if isinstance(bundle_id, str) and bundle_id.isascii() and bundle_id.isalnum()
        else None
    )
    if sealed is None:
        return HttpResponse(status=HTTPStatus.NOT_FOUND)
    headers = {"Cache-Control": "no-store"}
    return HttpResponse(sealed, content_type="application/octet-stream", headers=headers)
