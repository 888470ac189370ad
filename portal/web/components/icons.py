"""Icons of the sprite as markup, for tags and for drawings that are written without templates."""

from functools import lru_cache

from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString


@lru_cache(maxsize=1024)
def icon(name: str, size: str = "", label: str = "") -> SafeString:
    """Render an icon from the sprite; without ``label`` it is decoration."""
    css = f"i {size}".strip()
    address = f"{static('img/icons.svg')}#{name}"
    if label:
        return format_html(
            '<svg class="{}" role="img" aria-label="{}"><use href="{}"/></svg>',
            css,
            label,
            address,
        )
    return format_html('<svg class="{}" aria-hidden="true"><use href="{}"/></svg>', css, address)
