"""Models of ``tenants``."""

from tenants.models.announcements import Announcement, AnnouncementDismissal, Severity
from tenants.models.audit import AppendOnlyError, AuditAnchor, AuditEntry, AuditLink
from tenants.models.inbox import InboxMessage, Snooze
from tenants.models.keys import InstallationKey, JoinBundle
from tenants.models.schema import SchemaRelease
from tenants.models.tenants import Membership, Tenant, UidFloor, UsedSoFar
from tenants.models.users import (
    ApiToken,
    FormToken,
    KnownSource,
    Language,
    PasswordLink,
    SignInTally,
    Theme,
    User,
)

__all__ = [
    "Announcement",
    "AnnouncementDismissal",
    "ApiToken",
    "AppendOnlyError",
    "AuditAnchor",
    "AuditEntry",
    "AuditLink",
    "FormToken",
    "InboxMessage",
    "InstallationKey",
    "JoinBundle",
    "KnownSource",
    "Language",
    "Membership",
    "PasswordLink",
    "SchemaRelease",
    "Severity",
    "SignInTally",
    "Snooze",
    "Tenant",
    "Theme",
    "UidFloor",
    "UsedSoFar",
    "User",
]
