"""The language of the page."""

from django.utils.translation import get_language


def is_english() -> bool:
    """Whether the page speaks the language in which everything is written."""
    return (get_language() or "en").split("-")[0] == "en"
