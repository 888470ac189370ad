"""Shapes of the sentences and words that the modules of the pages make, by page."""

from typing import Final

from portal.i18n.of_pages.answers import ANSWER_SENTENCES
from portal.i18n.of_pages.audit import AUDIT
from portal.i18n.of_pages.cluster import CLUSTER
from portal.i18n.of_pages.jobs import JOBS
from portal.i18n.of_pages.people import PEOPLE
from portal.i18n.of_pages.shared import SHARED
from portal.i18n.of_pages.shares import SHARES

PAGE_SENTENCES: Final = (*ANSWER_SENTENCES, *AUDIT, *CLUSTER, *JOBS, *PEOPLE, *SHARED, *SHARES)
