"""Addresses of pages about things that drawings and tables link to."""

from django.urls import NoReverseMatch, reverse


def job_url(job_id: int | None) -> str:
    """The page of a job; empty for none."""
    return address("job", job_id) if job_id else ""


def node_url(node_id: int) -> str:
    """The page of a node."""
    return address("node", node_id)


def address(name: str, *args: object) -> str:
    """The address of a named page; empty where this installation has no such page."""
    try:
        return reverse(name, args=args)
    except NoReverseMatch:
        return ""
