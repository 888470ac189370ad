"""Every sentence that can be said anew, whoever makes it."""

from typing import Final

from portal.i18n.of_importers import IMPORTER_SENTENCES
from portal.i18n.of_pages import PAGE_SENTENCES

SENTENCES: Final = frozenset((*IMPORTER_SENTENCES, *PAGE_SENTENCES))
