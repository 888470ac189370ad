"""What is counted on the pages: ``words.plural`` asks gettext for these by their English forms."""

from django.utils.translation import npgettext


def counted(number: int) -> tuple[str, ...]:
    """Every counted noun in the form for ``number``."""
    return (
        npgettext("count", "attempt", "attempts", number),
        npgettext("count", "cell", "cells", number),
        npgettext("count", "change on this page", "changes on this page", number),
        npgettext("count", "checkpoint", "checkpoints", number),
        npgettext("count", "decision", "decisions", number),
        npgettext("count", "device", "devices", number),
        npgettext("count", "device becomes", "devices become", number),
        npgettext("count", "device does not agree", "devices do not agree", number),
        npgettext("count", "device guaranteed", "devices guaranteed", number),
        npgettext("count", "device is", "devices are", number),
        npgettext("count", "device leaves", "devices leave", number),
        npgettext("count", "device tells", "devices tell", number),
        npgettext("count", "epoch", "epochs", number),
        npgettext("count", "error", "errors", number),
        npgettext("count", "failure", "failures", number),
        npgettext("count", "job", "jobs", number),
        npgettext("count", "job is", "jobs are", number),
        npgettext("count", "job that borrows", "jobs that borrow", number),
        npgettext("count", "job was", "jobs were", number),
        npgettext("count", "logical worker", "logical workers", number),
        npgettext("count", "member", "members", number),
        npgettext("count", "more cell is", "more cells are", number),
        npgettext("count", "more job", "more jobs", number),
        npgettext("count", "more node is", "more nodes are", number),
        npgettext("count", "node", "nodes", number),
        npgettext("count", "node has", "nodes have", number),
        npgettext("count", "person", "people", number),
        npgettext("count", "pinned cell", "pinned cells", number),
        npgettext("count", "rank", "ranks", number),
        npgettext("count", "run", "runs", number),
        npgettext("count", "running job", "running jobs", number),
        npgettext("count", "running job borrows", "running jobs borrow", number),
        npgettext("count", "short run", "short runs", number),
        npgettext("count", "start", "starts", number),
        npgettext("count", "step", "steps", number),
        npgettext("count", "stored round", "stored rounds", number),
        npgettext("count", "thing", "things", number),
        npgettext("count", "token", "tokens", number),
        npgettext("count", "virtual cluster", "virtual clusters", number),
        npgettext("count", "waiting job", "waiting jobs", number),
    )
