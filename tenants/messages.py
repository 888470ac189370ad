"""Messages of refused changes of tenants, members, accounts or tokens, with remedies."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import BASE, Table, Template, fixed

TENANTS: Final[Mapping[str, Template]] = {
    "choose-another-tenant-name": fixed("Choose another name."),
    "invalid-request": fixed("The request is not valid"),
    "not-found": fixed("Not found, or you may not see it"),
    "forbidden": fixed("You are not allowed to do this"),
    "conflict": fixed("The request conflicts with stored data"),
    "name-taken": fixed("That name is taken"),
    "changed-meanwhile": fixed("Another user changed this in the meantime"),
    "stale-edit": fixed("The %(kind)s was changed since you loaded it."),
    "reload-and-repeat": fixed(
        "Reload it, check the change, and repeat yours if it still applies."
    ),
    "user-name-exists": fixed("A user with this name already exists."),
    "choose-stronger-password": fixed("Choose a longer, less common password."),
    "not-cursor": fixed("This is not a valid cursor."),
    "no-tenant-for-you": fixed("Tenant not found, or you may not see it."),
    "no-member-for-you": fixed("Member not found, or you may not see it."),
    "use-next-cursor": fixed("Use next_cursor of the previous page, or omit it."),
    "levels-to-use": fixed("Use one of %(names)s."),
    "not-field-of-announcement": fixed("This is not a valid %(name)s of an announcement."),
    "give-instant": fixed("Give a time with its UTC offset."),
    "give-later-end": fixed("Give a time after its start, or none."),
    "form-sent": fixed("The form was already submitted"),
    "form-done": fixed("This form was already submitted and processed."),
    "form-differs": fixed(
        "This form was already submitted with other values. Nothing was created."
    ),
    "send-form-again": fixed("Submit it again to create another one."),
    "lead-needed": fixed("A tenant needs at least one lead"),
    "last-lead": fixed("%(username)s is the last lead of %(name)s."),
    "no-tenant": fixed("Tenant not found."),
    "member-already": fixed("%(username)s is already a member of %(name)s."),
    "choose-lead-first": fixed("Give another member the lead role first, or ask a cluster admin."),
    "no-such-role": fixed("This is not a valid role."),
    "roles-to-use": fixed("Use one of: %(names)s."),
    "cap-too-small": fixed("A cap must be at least 1 device."),
    "give-cap": fixed("Use 1 to %(most)s, or leave it empty for no cap."),
    "no-active-user": fixed("No active user has this name."),
    "check-user-name": fixed("Check the spelling, or ask a cluster admin to create the user."),
    "change-role-member-instead": fixed("Change the role of the member instead."),
    "not-password-link": fixed(
        "This password link is not valid: it was used or replaced, or it has expired."
    ),
    "token-cannot-change-password": fixed("A token cannot change a password."),
    "only-user-sets-password": fixed("Only the user can set this password."),
    "current-password-not-right": fixed("The current password is incorrect."),
    "token-cannot-create-link": fixed("A token cannot create a password link."),
    "no-link-for-yourself": fixed("You cannot create a password link for yourself."),
    "deactivated": fixed("%(username)s is deactivated."),
    "ask-for-new-link": fixed("Ask a cluster admin for a new one."),
    "sign-in-to-change": fixed(
        "Sign in and change it there, or ask a cluster admin for a password link."
    ),
    "create-password-link-user": fixed("Create a password link for the user."),
    "enter-password-again": fixed("Enter it again, or ask a cluster admin for a password link."),
    "sign-in-as-admin": fixed("Sign in as a cluster admin, or use your name and password."),
    "use-own-password": fixed("Change your own password with the current one."),
    "activate-account-first": fixed("Activate the account first."),
    "sign-in-delayed": fixed("After failed sign-ins the next attempt is delayed."),
    "retry-in": fixed("Try again in %(n)s s."),
    "sign-ins-not-recorded": fixed("Further failed sign-ins are not recorded for a while."),
    "tenants-raced": fixed("Too many tenants were created at the same time."),
    "retry-now": fixed("Try again."),
    "archived-already": fixed("%(name)s is already archived."),
    "not-archived": fixed("%(name)s is not archived."),
    "not-tenant-name": fixed("This is not a valid name of a tenant."),
    "use-tenant-name": fixed(
        "Use 1 to 40 characters of a-z 0-9 -; begin with a letter and do not end with a dash."
    ),
    "not-display-name": fixed("The display name is empty, too long or has control characters."),
    "use-80-printable-characters": fixed("Use 1 to 80 printable characters."),
    "not-note": fixed("The note is too long, or has a character that cannot be stored."),
    "use-most-000-characters": fixed("Use at most 2,000 characters."),
    "tenant-named-exists": fixed("A tenant named %(name)s already exists."),
    "no-such-token-yours": fixed("Token not found, or not yours."),
    "only-users-own-tokens": fixed("Only users can own tokens."),
    "scopes-you-may-give": fixed("Allowed: %(choice)s."),
    "sign-in-as-user-first": fixed("Sign in as a user."),
    "token-needs-name": fixed("A token needs a name."),
    "give-token-name": fixed("Give a name of 1 to 80 printable characters."),
    "token-cannot-lifetime": fixed("A token cannot have this lifetime."),
    "give-lifetime": fixed("Use 1 to %(days)s days, or leave it empty for no expiry."),
    "not-your-tenant": fixed("You are not a member of this tenant."),
    "name-your-tenant": fixed("Use one of your tenants, or omit it."),
    "roles-not-allow-scope": fixed("Your roles do not allow this scope."),
    "no-such-scope": fixed("This is not a valid scope."),
    "token-without-scope": fixed("A token needs at least one scope."),
    "choose": fixed("Choose from: %(scopes)s."),
    "token-cannot-set-password": fixed("A token cannot set a password."),
    "last-cluster-admin": fixed("%(username)s is the last cluster admin."),
    "omit-password": fixed(
        "Omit the password, and create a password link when you are signed in."
    ),
    "user-named-exists": fixed("A user named %(username)s already exists."),
    "make-other-admin": fixed("Grant another user the cluster admin role first."),
    "not-user-name": fixed("This is not a valid user name."),
    "use-user-name": fixed(
        "Use 1 to 64 characters of A-Z a-z 0-9 . _ @ + -; begin with a letter or digit."
    ),
    "too-long": fixed("The %(field)s is too long."),
    "use-most-150-characters": fixed("Use at most 150 characters."),
    "choose-another-user-name": fixed("Choose another name; upper and lower case do not differ."),
    "no-such-name": fixed("No %(kind)s has this name."),
    "use-time-zone": fixed("Use a name such as Europe/Vienna."),
    "not-mail-address": fixed("This is not a valid e-mail address."),
    "use-mail-address": fixed("Use one such as alice@example.org, or leave it empty."),
    "another-tenant": fixed("another tenant"),
    "ask-lead-tenant": fixed("Ask a lead of the tenant."),
    "forbidden-for": fixed("You are not allowed to do that to %(what)s."),
    "tenant-is-archived": fixed("The tenant is archived; a cluster admin can restore it."),
    "use-token-with-scopes": fixed("Use a token with this scope, or sign in."),
    "ask-cluster-admin": fixed("Ask a cluster admin."),
    "not-found-or-hidden": fixed("Not found, or you may not see it: %(what)s."),
    "no-such-user": fixed("User not found."),
    "no-such-announcement": fixed("Announcement not found."),
    "write-characters": fixed("Write 1 to %(most)s characters."),
    "no-tenant-yet": fixed("none; ask a lead to add you to a tenant"),
    "uids-used-up": fixed("All Unix user ids for tenants (%(first)s-%(last)s) are in use."),
    "larger-uid-range": fixed("Set TESSERA_TENANT_UIDS to a larger range here and on the nodes."),
}

TABLE: Final = Table(BASE, TENANTS)
message = TABLE.message
sentence = TABLE.sentence
