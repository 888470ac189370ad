"""Language of pages, and its switch."""

from http import HTTPStatus
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.middleware.locale import LocaleMiddleware
from django.utils import translation
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from tenants.models import Language
from tenants.services import set_preferences
from tenants.viewers import Viewer

YEAR_SECONDS: Final = 365 * 24 * 3600
PROGRAM_PATHS: Final = ("/api/v1/", "/admin/", "/healthz", "/readyz", "/metrics")
"""For programs and for those who run the portal: English, whatever a browser asks for."""


class LanguageMiddleware(LocaleMiddleware):
    """Selects the language: the person's, then that of the cookie, then that of the browser."""

    def process_request(self, request: HttpRequest) -> None:
        """Choose the language of this request; programming interfaces use English."""
        code = "en" if request.path.startswith(PROGRAM_PATHS) else language_of(request)
        translation.activate(code)
        request.LANGUAGE_CODE = translation.get_language() or "en"


def chosen_language(request: HttpRequest) -> str:
    """Return the chosen language, or ``browser``."""
    user = getattr(request, "user", None)
    if getattr(user, "is_authenticated", False):
        return str(getattr(user, "language", Language.BROWSER))
    kept = request.COOKIES.get(settings.LANGUAGE_COOKIE_NAME, "")
    return kept if kept in Language.values else str(Language.BROWSER)


def language_of(request: HttpRequest) -> str:
    """Return the language code of a page for this request."""
    chosen = chosen_language(request)
    if chosen != Language.BROWSER:
        return chosen
    return translation.get_language_from_request(request)


@require_POST
def switch(request: HttpRequest) -> HttpResponse:
    """Store the language for this browser and, if signed in, for the person."""
    chosen = request.POST.get("language", "")
    if chosen not in Language.values:
        known = ", ".join(Language.values)
        return HttpResponse(f"language is one of {known}", status=HTTPStatus.BAD_REQUEST)
    user = request.user
    if user.is_authenticated and user.language != chosen:
        set_preferences(viewer=Viewer(user_id=user.pk, username=user.username), language=chosen)
    back = request.POST.get("next", "")
    hosts = {request.get_host()}
    if not url_has_allowed_host_and_scheme(back, hosts, require_https=request.is_secure()):
        back = "/"
    response = HttpResponseRedirect(back)
    response.set_cookie(
        settings.LANGUAGE_COOKIE_NAME,
        chosen,
        max_age=YEAR_SECONDS,
        samesite="Lax",
        secure=request.is_secure(),
        httponly=True,
    )
    return response
