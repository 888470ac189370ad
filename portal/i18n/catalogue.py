"""Every sentence that can be said anew, whoever makes it."""

from typing import Final

from portal.i18n.answers import ANSWER_SENTENCES
from portal.i18n.vocabulary import VOCABULARY

SENTENCES: Final = frozenset((*ANSWER_SENTENCES, *VOCABULARY))
