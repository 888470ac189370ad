"""Every sentence that can be said anew, whoever makes it."""

from typing import Final

from portal.i18n.of_core import CORE_SENTENCES
from portal.i18n.of_policies import POLICY_SENTENCES
from portal.i18n.of_services import SERVICE_SENTENCES
from portal.i18n.of_specs import SPEC_SENTENCES
from portal.i18n.vocabulary import VOCABULARY

SENTENCES: Final = frozenset(
    (
        *CORE_SENTENCES,
        *VOCABULARY,
        *POLICY_SENTENCES,
        *SERVICE_SENTENCES,
        *SPEC_SENTENCES,
    )
)
