"""The catalogue of all translatable sentence shapes."""

from typing import Final

from portal.i18n.answers import ANSWER_SENTENCES
from portal.i18n.vocabulary import VOCABULARY

SENTENCES: Final = frozenset((*ANSWER_SENTENCES, *VOCABULARY))
