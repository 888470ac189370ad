"""Sign-in, passwords and theme: thin views over the services of Django and ``tenants``."""

from http import HTTPStatus
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.auth import logout, update_session_auth_hash
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm
from django.contrib.auth.views import (
    LoginView,
    LogoutView,
    PasswordChangeDoneView,
    PasswordChangeView,
)
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse, reverse_lazy
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from portal.i18n import gettext_lazy
from portal.sign_in import source_of
from portal.web.context import THEMES
from portal.web.forms import put_faults, status_of
from tenants.clock import database_now
from tenants.errors import DomainError, NotFoundError
from tenants.models import User
from tenants.selectors import viewer_of
from tenants.services import (
    remember_source,
    set_password,
    set_preferences,
    signed_out,
    use_password_link,
    user_of_password_link,
)
from tenants.viewers import Viewer

YEAR_SECONDS: Final = 365 * 24 * 3600
_NEW_PASSWORD: Final = forms.PasswordInput(attrs={"autocomplete": "new-password"})
_PASSWORD_FIELDS: Final = {"current_password": "old_password", "password": "new_password1"}


class SignInForm(AuthenticationForm):
    """Username and password."""

    error_messages = AuthenticationForm.error_messages | {
        "invalid_login": gettext_lazy(
            "Username or password is wrong. Passwords are case-sensitive."
        )
    }


class SignIn(LoginView):
    """The sign-in page; redirects people who are signed in."""

    template_name = "session/login.html"
    authentication_form = SignInForm
    redirect_authenticated_user = True

    def get_form(self, form_class: type[AuthenticationForm] | None = None) -> AuthenticationForm:
        """Return the form with the focus on the first empty field, also after an error."""
        form = super().get_form(form_class)
        if self.request.method == "POST" and self.request.POST.get("username"):
            form.fields["username"].widget.attrs.pop("autofocus", None)
            form.fields["password"].widget.attrs["autofocus"] = True
        return form

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Show the page again, with the fault at the focused field."""
        if form.non_field_errors():
            attrs = {"aria-invalid": "true", "aria-describedby": "sign-in-fault"}
            form.fields["password"].widget.attrs.update(attrs)
        return super().form_invalid(form)


class SignOut(LogoutView):
    """Ends the session, by POST only."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """End the session, and record the sign-out."""
        if request.method == "POST" and isinstance(request.user, User):
            signed_out(user=request.user, address=source_of(request).address)
        return super().dispatch(request, *args, **kwargs)


class RevocablePasswordForm(PasswordChangeForm):
    """The current password, the new one twice, and the sessions and tokens to revoke."""

    revoke_tokens = forms.BooleanField(label=gettext_lazy("Revoke my API tokens"), required=False)


class ChangePassword(PasswordChangeView):
    """Form with the old password, and the new password twice."""

    template_name = "session/password.html"
    form_class = RevocablePasswordForm
    success_url = reverse_lazy("password-changed")

    def form_valid(self, form: PasswordChangeForm) -> HttpResponse:
        """Change the password by the service, which records the change; this session continues."""
        user = form.user
        try:
            set_password(
                viewer=viewer_of(user),
                user_id=user.pk,
                password=form.cleaned_data["new_password1"],
                current_password=form.cleaned_data["old_password"],
                revoke_tokens=form.cleaned_data["revoke_tokens"],
            )
        except DomainError as refused:
            put_faults(form, refused, _PASSWORD_FIELDS)
            return self.form_invalid(form)
        user.refresh_from_db(fields=["password"])
        update_session_auth_hash(self.request, user)
        return HttpResponseRedirect(self.get_success_url())


class PasswordChanged(PasswordChangeDoneView):
    """Confirmation of the change."""

    template_name = "session/password_done.html"


class NewPasswordForm(forms.Form):
    """A new password, twice."""

    password = forms.CharField(label=gettext_lazy("New password"), widget=_NEW_PASSWORD)
    repeated = forms.CharField(
        label=gettext_lazy("New password confirmation"), widget=_NEW_PASSWORD
    )
    revoke_tokens = forms.BooleanField(label=gettext_lazy("Revoke my API tokens"), required=False)

    def clean_repeated(self) -> str:
        """Require the same password twice."""
        repeated: str = self.cleaned_data["repeated"]
        if repeated != self.cleaned_data.get("password"):
            raise forms.ValidationError(_("The two passwords do not match."))
        return repeated


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def choose_password(request: HttpRequest, secret: str) -> HttpResponse:
    """Choose a password with a one-time link, signed in or not."""
    now = database_now()
    form = NewPasswordForm(request.POST or None)
    try:
        owner = user_of_password_link(secret, now)
        if request.method == "POST" and form.is_valid():
            owner = use_password_link(
                secret=secret,
                password=form.cleaned_data["password"],
                revoke_tokens=form.cleaned_data["revoke_tokens"],
                now=now,
            )
            # A valid link proves the person: failures of others do not delay the sign-in.
            remember_source(user=owner, source=source_of(request), now=now)
            logout(request)
            messages.success(request, _("Password set. Sign in with the new password."))
            return HttpResponseRedirect(reverse("login"))
    except NotFoundError as gone:
        return _no_referrer(
            render(request, "session/link_gone.html", {"fault": gone.errors[0]}, status=404)
        )
    except DomainError as refused:
        put_faults(form, refused)
    context = {"form": form, "username": owner.username}
    return _no_referrer(render(request, "session/link.html", context, status=status_of(form)))


def _no_referrer(response: HttpResponse) -> HttpResponse:
    # The address holds the secret.
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Store the theme for this browser and, if signed in, for the user."""
    chosen = request.POST.get("theme", "")
    if chosen not in {*THEMES, "system"}:
        return HttpResponse("theme is light, dark or system", status=HTTPStatus.BAD_REQUEST)
    user = request.user
    if user.is_authenticated and user.theme != chosen:
        set_preferences(viewer=Viewer(user_id=user.pk, username=user.username), theme=chosen)
    response = HttpResponse(status=HTTPStatus.NO_CONTENT)
    response.set_cookie(
        "theme",
        chosen,
        max_age=YEAR_SECONDS,
        samesite="Lax",
        secure=request.is_secure(),
        httponly=True,
    )
    return response
