"""The documentation in the portal: the list of documents, and the text of one."""

from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _

from portal.guides import guide_named, reading_order
from portal.web.viewing import PageRequest, page
from tenants.errors import NotFoundError


@page
def documentation(asked: PageRequest) -> HttpResponseBase:
    """List the documents of this version."""
    return asked.render("guides/list.html", {"parts": reading_order()})


@page
def document(asked: PageRequest, name: str) -> HttpResponseBase:
    """Show a document as text.

    Raises:
        NotFoundError: there is no document of this name.
    """
    found = guide_named(name)
    if found is None:
        raise NotFoundError(_("This document does not exist."), field="name", value=name)
    return asked.render("guides/guide.html", {"guide": found})
