"""Addresses of the pages."""

from django.urls import URLPattern, URLResolver, include, path

from portal.web import gallery, language, session, zones

urlpatterns: list[URLPattern | URLResolver] = [
    path("login/", session.SignIn.as_view(), name="login"),
    path("logout/", session.SignOut.as_view(), name="logout"),
    path("password/", session.ChangePassword.as_view(), name="password"),
    path("password/changed/", session.PasswordChanged.as_view(), name="password-changed"),
    path("password/link/<str:secret>/", session.choose_password, name="password-link"),
    path("theme/", session.theme, name="theme"),
    path("language/", language.switch, name="language"),
    path("time-zone/", zones.time_zone, name="time-zone"),
    path("", include("portal.web.saved_views_urls")),
    path("", include("portal.web.job_urls")),
    path("_components/", gallery.components, name="components"),
    path("", include("portal.web.cluster_urls")),
    path("", include("portal.web.evidence_urls")),
]
