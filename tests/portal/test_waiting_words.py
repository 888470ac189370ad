"""What a job wants is said in Chinese as well, whole."""

import pytest
from django.utils import translation

from portal.i18n import said
from portal.templatetags.cluster import wants
from tests.support.latin import english_in


@pytest.mark.parametrize(
    "text",
    [
        "2 × 4 × A100 in one node each",
        "4 × A100 in one socket",
        "2 × 2 × A100 or H100 in one pcie each on pinned cell corner",
        "worker 2 × 4 × any device in one socket each, ps 1 × any device",
        "With 1 instance in worker it starts now.",
        "Released and with 4 devices each in worker it starts now.",
        "8 not in use, 3 of them lent",
    ],
)
def test_what_a_job_wants_and_what_would_help_is_said_whole(text: str) -> None:
    with translation.override("zh-hans"):
        shown = f"{said(text)} {' '.join(wants(text))}"

    assert english_in(shown, frozenset(("worker", "ps", "corner", "pcie"))) == []
