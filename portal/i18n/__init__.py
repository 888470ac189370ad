"""Translation of the portal's texts (``docs/translating.md``)."""

from portal.i18n.language import gettext_lazy, is_english
from portal.i18n.rendering import Name, translated
from portal.i18n.vocabulary import word

__all__ = ["Name", "gettext_lazy", "is_english", "translated", "word"]
