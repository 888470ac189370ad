"""The rows of the tenants room."""

from tenants.models.announcements import Announcement, AnnouncementDismissal, Severity
from tenants.models.audit import AppendOnlyError, AuditAnchor, AuditEntry, AuditLink
from tenants.models.forms import FormToken
from tenants.models.sign_in import KnownSource, PasswordLink, SignInTally
from tenants.models.tenants import Membership, Tenant, UidFloor
from tenants.models.tokens import ApiToken
from tenants.models.use import UsedSoFar
from tenants.models.users import Language, Theme, User

__all__ = [
    "Announcement",
    "AnnouncementDismissal",
    "ApiToken",
    "AppendOnlyError",
    "AuditAnchor",
    "AuditEntry",
    "AuditLink",
    "FormToken",
    "KnownSource",
    "Language",
    "Membership",
    "PasswordLink",
    "Severity",
    "SignInTally",
    "Tenant",
    "Theme",
    "UidFloor",
    "UsedSoFar",
    "User",
]
