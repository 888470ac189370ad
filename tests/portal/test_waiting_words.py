"""What a job wants is said in Chinese as well, whole."""

import pytest
from django.utils import translation

from portal.i18n import said
from portal.templatetags.cluster import wants
from scheduling.core.messages import message, sentence
from tessera.messages import Listing, Message
from tests.support.latin import english_in


@pytest.mark.parametrize(
    "text",
    [
        "2 × 4 × A100 in one node each",
        "4 × A100 in one socket",
        "2 × 2 × A100 or H100 in one pcie each on pinned cell corner",
        "worker 2 × 4 × any device in one socket each, ps 1 × any device",
    ],
)
def test_what_a_job_wants_and_what_would_help_is_said_whole(text: str) -> None:
    with translation.override("zh-hans"):
        shown = f"{said(text)} {' '.join(wants(text))}"

    assert english_in(shown, frozenset(("worker", "ps", "corner", "pcie"))) == []


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (message("with-instances", n=1, role="worker"), "worker 以 1 个实例，即可立即启动。"),
        (
            message(
                "gates-and",
                gates=Listing((message("released"),)),
                how=message("with-devices-each", n=4, role="worker"),
            ),
            "放行后：worker 每个实例以 4 个设备，即可立即启动。",
        ),
    ],
)
def test_what_would_help_is_rendered_whole(how: Message, told: str) -> None:
    with translation.override("zh-hans"):
        assert said(sentence(message("starts-now", how=how))) == told
