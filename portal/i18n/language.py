"""Detection of the source language."""

from django.utils.translation import get_language


def is_english() -> bool:
    """Return whether the language of the page is English, the source language."""
    return (get_language() or "en").split("-")[0] == "en"
