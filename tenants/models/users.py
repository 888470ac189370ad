"""People who sign in, and how they like to see the portal."""

from typing import ClassVar

from django.contrib.auth.models import AbstractUser, UserManager
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower

from tenants.messages import sentence

USERNAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}"
"""ASCII only: two names that look alike must be one name, and case is folded by the database."""


class Theme(models.TextChoices):
    """Which colours the portal shows."""

    SYSTEM = "system", "As the system"
    LIGHT = "light", "Light"
    DARK = "dark", "Dark"


class Language(models.TextChoices):
    """Languages the portal speaks, or the one that the browser asks for."""

    BROWSER = "browser", "As the browser"
    ENGLISH = "en", "English"
    CHINESE = "zh-hans", "简体中文"


BROWSER_ZONE = "browser"
"""Times are shown in the zone of the browser."""


class PeopleManager(UserManager["User"]):
    """Finds people by name whatever its case, so that Alice and alice are one login."""

    def get_by_natural_key(self, username: str | None) -> "User":
        """The user of that name in any case; what sign-in asks."""
        return self.get(username__iexact=username or "")

    async def aget_by_natural_key(self, username: str | None) -> "User":
        """The same for asynchronous callers."""
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
        """Whether this person runs the cluster; a deactivated one does not."""
        return self.is_active and self.is_superuser
