"""Addresses of pages that drawings and tables link to."""

from functools import lru_cache

from django.urls import NoReverseMatch, get_script_prefix, reverse

from tenants.services import IssuedLink


def job_url(job_id: int | None) -> str:
    return address("job", job_id) if job_id else ""


def node_url(node_id: int) -> str:
    return address("node", node_id)


def link_address(portal_url: str, link: IssuedLink) -> str:
    """Return the address of a password link, usable without a session."""
    return f"{portal_url}{reverse('password-link', args=(link.secret,))}"


def address(name: str, *args: object) -> str:
    """Return the address of a named page; empty where this installation has no such page."""
    return _address(get_script_prefix(), name, *args)


@lru_cache(maxsize=16384)
def _address(_prefix: str, name: str, *args: object) -> str:
    # A page links thousands of jobs, and most of them again a second later.
    try:
        return reverse(name, args=args)
    except NoReverseMatch:
        return ""
