"""Authentication of API requests by token, browser session, or username and password."""

from typing import Any, Final

from django.contrib.auth import authenticate
from django.http import QueryDict
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import authentication, exceptions
from rest_framework.request import Request, is_form_media_type

from tenants.audit import bind_actor
from tenants.clock import database_now
from tenants.models import ApiToken, User
from tenants.selectors import viewer_of
from tenants.services import authenticate_token
from tenants.viewers import Viewer


class TokenAuthentication(authentication.BaseAuthentication):
    """Authentication by API token, sent as ``Authorization: Token <key>`` or ``Bearer <key>``."""

    keyword = "Token"

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """Return the token's owner and the token, or None if the request has no token.

        Raises:
            AuthenticationFailed: the token is unknown, expired or revoked.
        """
        scheme, _, key = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() not in ("token", "bearer"):
            return None
        found = authenticate_token(key.strip(), database_now())
        if found is None:
            raise exceptions.AuthenticationFailed("The token is unknown, expired or revoked.")
        return found

    def authenticate_header(self, request: Request) -> str:
        return self.keyword


class SessionAuthentication(authentication.SessionAuthentication):
    """Authentication by the session cookie of a signed-in browser, with CSRF protection."""

    def enforce_csrf(self, request: Request) -> None:
        """Check the CSRF token in the header or in the form fields of the body.

        Raises:
            PermissionDenied: the token is missing or wrong.
        """
        checked: Any = request
        # Only a form can contain the token; other bodies are parsed after authentication. curl's
        # -d declares every text as a form, and importers read it as plain text.
        if request.method == "POST" and not (
            is_form_media_type(request.content_type) and isinstance(checked.POST, QueryDict)
        ):
            checked = request._request
            checked._post = QueryDict()
        super().enforce_csrf(checked)

    def authenticate_header(self, request: Request) -> str:
        return "Token"


class PasswordAuthentication(authentication.BasicAuthentication):
    """Basic authentication, used only by ``POST /tokens/`` and subject to the sign-in throttle."""

    www_authenticate_realm = "tessera"

    def authenticate_credentials(
        self, userid: str, password: str, request: Any = None
    ) -> tuple[User, None]:
        """Return the user whose password matches, checked by the backends of the login page."""
        django_request = getattr(request, "_request", request)
        user = authenticate(request=django_request, username=userid, password=password)
        if not isinstance(user, User) or not user.is_active:
            raise exceptions.AuthenticationFailed("The user name or the password is incorrect.")
        return user, None


# A token is also accepted here, so that the error for it can name the remedy.
PASSWORD_OR_SESSION: Final = [TokenAuthentication, SessionAuthentication, PasswordAuthentication]


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """OpenAPI security scheme of API tokens."""

    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {
            "type": "apiKey",
            "in": "header",
            "name": "Authorization",
            "description": "`Token <key>`",
        }


class PasswordScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """OpenAPI security scheme of basic authentication."""

    target_class = PasswordAuthentication
    name = "password"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "basic"}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """OpenAPI security scheme of browser sessions."""

    target_class = SessionAuthentication
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}


def viewer_from(request: Request) -> Viewer:
    """Return the viewer of a request, cached on the request.

    The function also records the viewer as the actor of audited changes.
    """
    known = getattr(request, "_tessera_viewer", None)
    if isinstance(known, Viewer):
        return known
    token = request.auth if isinstance(request.auth, ApiToken) else None
    assert isinstance(request.user, User)  # noqa: S101 permission IsAuthenticated has checked it
    viewer = viewer_of(request.user, token)
    request._tessera_viewer = viewer  # type: ignore[attr-defined]
    bind_actor(viewer)
    return viewer
