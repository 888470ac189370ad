"""Translation of the portal's texts (``docs/translating.md``)."""

from portal.i18n.language import is_english
from portal.i18n.lazy import gettext_lazy
from portal.i18n.said import Name, said
from portal.i18n.vocabulary import word

__all__ = ["Name", "gettext_lazy", "is_english", "said", "word"]
