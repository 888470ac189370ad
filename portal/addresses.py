"""URLs of pages for links in drawings, tables and messages."""

from functools import lru_cache

from django.urls import NoReverseMatch, get_script_prefix, reverse

from tenants.services import IssuedLink


def job_url(job_id: int | None) -> str:
    return address("job", job_id) if job_id else ""


def node_url(node_id: int) -> str:
    return address("node", node_id)


def link_address(portal_url: str, link: IssuedLink) -> str:
    """Return the URL of a password link, which works without a session."""
    return f"{portal_url}{reverse('password-link', args=(link.secret,))}"


def address(name: str, *args: object) -> str:
    """Return the URL path of a named page; empty if this installation does not have the page."""
    return _address(get_script_prefix(), name, *args)


@lru_cache(maxsize=16384)
def _address(_prefix: str, name: str, *args: object) -> str:
    # A page links thousands of jobs, and the next page links most of them again.
    try:
        return reverse(name, args=args)
    except NoReverseMatch:
        return ""
