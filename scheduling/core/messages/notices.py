"""Messages for notification events and failed deliveries."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, fixed

NOTICES: Final[Mapping[str, Template]] = {
    "event-running": fixed("a job is running on all its nodes"),
    "event-succeeded": fixed("a job has succeeded"),
    "event-failed": fixed("a job has failed and is not retried"),
    "event-stopped": fixed("a job was stopped"),
    "event-preempting": fixed("a job is being preempted"),
    "event-requeued": fixed("a job was requeued after a preemption or a failure"),
    "event-suspect": fixed("a job's node does not respond"),
    "event-slowed": fixed("guests slow a job down by more than its limit"),
    "event-promoted": fixed("a guest or paired job has the device alone because its holder ended"),
    "event-idle": fixed("a job's devices are idle, and the job may be stopped"),
    "event-guarantee-used": fixed("a virtual cluster uses 80 or 100 percent of its guarantee"),
    "event-budget-used": fixed(
        "a tenant has used 80 or 100 percent of its GPU-hours of this month"
    ),
    "event-node-ready": fixed("a node accepts jobs again"),
    "event-node-suspect": fixed("a node missed a probe"),
    "event-node-down": fixed("a node is down"),
    "event-node-cordoned": fixed("a node was cordoned"),
    "event-node-draining": fixed("a node is being drained"),
    "event-node-disk": fixed("the disk of a node is almost full"),
    "event-portal-disk": fixed("the data directory of a host of the portal is almost full"),
    "event-test": fixed("a test"),
    "no-such-hook": fixed("Webhook not found, or not yours."),
    "use-https": fixed(
        "Use https://. Without TLS only networks in TESSERA_HOOK_NETWORKS are allowed."
    ),
    "use-public-host": fixed(
        "Use a public host, or ask an admin to allow its network in TESSERA_HOOK_NETWORKS."
    ),
    "enable-hook-first": fixed("Enable the webhook first."),
    "undelivered-hook-disabled": fixed("the webhook is disabled"),
    "undelivered-no-address": fixed("the user has no e-mail address or cannot sign in"),
    "delivery-pending": fixed("Its delivery is still being retried."),
    "hook-disabled": fixed("The webhook is disabled."),
    "no-such-delivery": fixed("Delivery not found."),
    "token-lacks-scope": fixed("The token does not have the required scope."),
    "use-token-with-scope": fixed("Use a token with this scope, or sign in."),
    "give-https-url": fixed(
        "Give an https:// address with a host and without a password, at most %(most)s characters."
    ),
    "token-lacks-jobs-read": fixed("The token does not have the scope jobs:read."),
    "give-some-of": fixed("Give one or more of: %(names)s."),
    "not-field-of-hook": fixed("This is not a valid %(name)s of a webhook."),
    "too-many-hooks": fixed("The limit of %(most)s webhooks is reached."),
    "use-token-with-jobs-read": fixed(
        "Use a token with jobs:read, omit these events, or sign in."
    ),
    "enable-it": fixed("Enable it."),
    "delete-unneeded": fixed("Delete one that is not needed."),
    "address-not-allowed": fixed("Webhooks to this address are not allowed."),
    "only-users-get-mail": fixed("Only users get mail."),
    "sign-in-as-user": fixed("Sign in as a user."),
    "no-such-event": fixed("This is not a valid event."),
    "not-gpu-hours": fixed("This is not a valid number of GPU-hours."),
    "give-budget": fixed("Give a number above 0, or null for no budget."),
    "undelivered-unknown-host": fixed("the host name cannot be resolved"),
    "undelivered-no-mail": fixed("this portal does not send mail"),
    "undelivered-error": fixed("an error in this portal (%(error)s)"),
    "undelivered-mail-refused": fixed("the mail server refused the mail (%(error)s)"),
    "undelivered-address-refused": fixed("the mail server refused the address"),
    "undelivered-login-refused": fixed("the mail server refused the login"),
    "undelivered-no-mail-server": fixed("mail server unreachable (%(error)s)"),
    "undelivered-timeout": fixed("timed out"),
    "undelivered-no-tls": fixed("TLS connection failed"),
    "undelivered-connection-refused": fixed("connection refused"),
    "undelivered-too-large": fixed("the body is too large"),
    "undelivered-status": fixed("the receiver returned %(status)s"),
    "undelivered-redirect": fixed("the receiver returned %(status)s; redirects are not followed"),
}
