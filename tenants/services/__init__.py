"""Services of ``tenants``: each function checks its caller, writes, and records the change."""

from tenants.edits import UNCHANGED, Unchanged
from tenants.services.announcements import (
    create_announcement,
    delete_announcement,
    dismiss_announcement,
    update_announcement,
)
from tenants.services.forms import FormSentError, act_once, prune_forms
from tenants.services.inbox import (
    mark_failures_seen,
    mark_messages,
    prune_inbox,
    snooze,
)
from tenants.services.members import (
    LastLeadError,
    add_member,
    remove_member,
    update_member,
)
from tenants.services.passwords import (
    IssuedLink,
    forget_password_links,
    issue_password_link,
    set_password,
    use_password_link,
    user_of_password_link,
)
from tenants.services.retention import prune_audit
from tenants.services.sign_in import forget_attempts, remember_source, signed_out
from tenants.services.tenants import (
    archive_tenant,
    create_tenant,
    newest_uid,
    restore_tenant,
    skip_uids,
    update_tenant,
)
from tenants.services.tokens import (
    IssuedToken,
    authenticate_token,
    issue_token,
    revoke_token,
    rotate_token,
)
from tenants.services.users import (
    create_user,
    grant_cluster_admin,
    revoke_cluster_admin,
    set_email,
    set_preferences,
    set_user_active,
)

__all__ = [
    "UNCHANGED",
    "FormSentError",
    "IssuedLink",
    "IssuedToken",
    "LastLeadError",
    "Unchanged",
    "act_once",
    "add_member",
    "archive_tenant",
    "authenticate_token",
    "create_announcement",
    "create_tenant",
    "create_user",
    "delete_announcement",
    "dismiss_announcement",
    "forget_attempts",
    "forget_password_links",
    "grant_cluster_admin",
    "issue_password_link",
    "issue_token",
    "mark_failures_seen",
    "mark_messages",
    "newest_uid",
    "prune_audit",
    "prune_forms",
    "prune_inbox",
    "remember_source",
    "remove_member",
    "restore_tenant",
    "revoke_cluster_admin",
    "revoke_token",
    "rotate_token",
    "set_email",
    "set_password",
    "set_preferences",
    "set_user_active",
    "signed_out",
    "skip_uids",
    "snooze",
    "update_announcement",
    "update_member",
    "update_tenant",
    "use_password_link",
    "user_of_password_link",
]
