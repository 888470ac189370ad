"""Rows of users: preferences, tokens, sign-in attempts and form tokens."""

from typing import ClassVar

from django.conf import settings
from django.contrib.auth.models import AbstractUser, UserManager
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Lower
from django.utils import timezone

from tenants.messages import sentence
from tenants.models.tenants import Tenant

USERNAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}"
"""ASCII only: names that look alike must be equal, and the database folds case."""


class Theme(models.TextChoices):
    """Colour themes of the portal."""

    SYSTEM = "system", "As the system"
    LIGHT = "light", "Light"
    DARK = "dark", "Dark"


class Language(models.TextChoices):
    """Languages of the portal, or the one that the browser requests."""

    BROWSER = "browser", "As the browser"
    ENGLISH = "en", "English"
    CHINESE = "zh-hans", "简体中文"


BROWSER_ZONE = "browser"
"""Value for the time zone of the browser."""


class PeopleManager(UserManager["User"]):
    """Finds people by name, ignoring case, so that Alice and alice are one user."""

    def get_by_natural_key(self, username: str | None) -> "User":
        """Return the user with this name, ignoring case; used by the sign-in."""
        return self.get(username__iexact=username or "")

    async def aget_by_natural_key(self, username: str | None) -> "User":
        """Return the user with this name, ignoring case; for asynchronous callers."""
        return await self.aget(username__iexact=username or "")


class User(AbstractUser):
    """A person; rights come from memberships, or from being a cluster admin (``is_superuser``)."""

    username = models.CharField(
        max_length=64,
        unique=True,
        validators=[RegexValidator(rf"^{USERNAME_PATTERN}\Z")],
        error_messages={"unique": sentence("user-name-exists")},
    )
    theme = models.CharField(max_length=6, choices=Theme, default=Theme.SYSTEM)
    language = models.CharField(max_length=7, choices=Language, default=Language.BROWSER)
    time_zone = models.CharField(max_length=64, default=BROWSER_ZONE)
    failures_seen_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects: ClassVar[PeopleManager] = PeopleManager()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(Lower("username"), name="user_name_unique_in_any_case"),
            models.CheckConstraint(condition=~Q(username=""), name="user_name_not_empty"),
            models.CheckConstraint(condition=Q(theme__in=Theme.values), name="user_theme_known"),
            models.CheckConstraint(
                condition=Q(language__in=Language.values), name="user_language_known"
            ),
            models.CheckConstraint(condition=~Q(time_zone=""), name="user_time_zone_not_empty"),
        ]

    def __str__(self) -> str:
        return self.username

    @property
    def is_cluster_admin(self) -> bool:
        """Return whether this person is an active cluster admin."""
        return self.is_active and self.is_superuser


class ApiToken(models.Model):
    """A stored key ``tsr_<prefix>_<secret>``: its prefix and the SHA-256 of the whole.

    A plain SHA-256 suffices: the secret has 256 bits of entropy and cannot be guessed.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens"
    )
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=8, unique=True)
    digest = models.CharField(max_length=64)
    scopes = models.JSONField(default=list)
    tenant = models.ForeignKey(
        Tenant, null=True, blank=True, on_delete=models.CASCADE, related_name="api_tokens"
    )
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at", "-id")
        constraints: ClassVar = [
            models.CheckConstraint(condition=~Q(name=""), name="apitoken_name_not_empty"),
            models.CheckConstraint(condition=~Q(prefix=""), name="apitoken_prefix_not_empty"),
            models.CheckConstraint(condition=~Q(digest=""), name="apitoken_digest_not_empty"),
            models.CheckConstraint(
                condition=Q(expires_at=None) | Q(expires_at__gt=F("created_at")),
                name="apitoken_expires_after_created",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix})"


class SignInTally(models.Model):
    """Failed sign-ins of a name, a source, or both.

    ``key`` is a keyed digest: a name that does not exist may be a password typed into the wrong
    field. ``failures`` is a decayed count, as of ``at``.
    """

    key = models.CharField(max_length=64, unique=True)
    failures = models.FloatField(default=0)
    at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(failures__gte=0), name="signintally_failures_not_negative"
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["at"], name="signintally_by_time")]

    def __str__(self) -> str:
        return f"{self.failures:.1f} failed sign-ins"


class KnownSource(models.Model):
    """An address or a device (by a keyed digest) from which a person has signed in."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=64)
    last_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user", "key"], name="knownsource_one_per_key"),
        ]
        indexes: ClassVar = [models.Index(fields=["last_at"], name="knownsource_by_time")]

    def __str__(self) -> str:
        return f"known source of user {self.user_id}"


class PasswordLink(models.Model):
    """A one-time link; ``digest`` is the SHA-256 of its secret, which is not stored.

    The row is deleted when the link is used, replaced, or the password changes.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user"], name="passwordlink_one_per_user"),
            models.CheckConstraint(condition=~Q(digest=""), name="passwordlink_digest_not_empty"),
            models.CheckConstraint(
                condition=Q(expires_at__gt=F("created_at")),
                name="passwordlink_expires_after_created",
            ),
        ]

    def __str__(self) -> str:
        return f"password link of user {self.user_id}"


class FormToken(models.Model):
    """A submitted form: ``made`` is the primary key of the object that it created.

    ``word`` is the one-time token of the rendered form, ``digest`` the hash of its fields. Rows
    are deleted after a day.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    word = models.CharField(max_length=32)
    digest = models.CharField(max_length=64)
    made = models.BigIntegerField(null=True)
    at = models.DateTimeField()

    class Meta:
        db_table = "tenants_usedform"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user", "word"], name="formtoken_one_per_word"),
        ]
        indexes: ClassVar = [models.Index(fields=["at"], name="formtoken_by_time")]

    def __str__(self) -> str:
        return f"{self.user_id} submitted {self.word}"
