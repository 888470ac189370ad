"""Every sentence that can be said anew, whoever makes it."""

from typing import Final

from portal.i18n.of_core import CORE_SENTENCES
from portal.i18n.of_importers import IMPORTER_SENTENCES
from portal.i18n.of_pages import PAGE_SENTENCES
from portal.i18n.of_policies import POLICY_SENTENCES
from portal.i18n.of_services import SERVICE_SENTENCES

SENTENCES: Final = frozenset(
    (
        *CORE_SENTENCES,
        *IMPORTER_SENTENCES,
        *PAGE_SENTENCES,
        *POLICY_SENTENCES,
        *SERVICE_SENTENCES,
    )
)
