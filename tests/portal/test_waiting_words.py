"""What a job wants is said in Chinese as well, whole."""

from typing import Any

import pytest
from django.utils import translation

from portal.i18n import translated
from portal.templatetags.cluster import wants
from scheduling.core.jobspec import Demand, MemberDemand, Within
from scheduling.core.messages import message, sentence
from scheduling.jobs.queries.job_columns import wants_in_words
from tessera.messages import Listing, Message
from tests.support.latin import english_in


def asked(role: str = "worker", **facts: Any) -> MemberDemand:
    return MemberDemand(**{"role": role, "count": 1, "devices": 1, **facts})


A_GANG = asked(count=2, devices=4, device_types=("A100",))
A_SOCKET = asked(devices=4, device_types=("A100",), within=Within.SOCKET)
PINNED = asked(
    count=2,
    devices=2,
    device_types=("A100", "H100"),
    within=Within.PCIE,
    pinned_cell="corner",
)
LARGE = asked(count=2, devices=4, within=Within.SOCKET)


@pytest.mark.parametrize(
    ("members", "english"),
    [
        ((A_GANG,), "2 × 4 × A100 in one node each"),
        ((A_SOCKET,), "4 × A100 in one socket"),
        ((PINNED,), "2 × 2 × A100 or H100 in one pcie each on pinned cell corner"),
        ((LARGE, asked("ps")), "worker 2 × 4 × any device in one socket each, ps 1 × any device"),
    ],
)
def test_what_a_job_wants_is_said_whole(members: tuple[MemberDemand, ...], english: str) -> None:
    text = wants_in_words(Demand(members=members))
    assert text == english

    with translation.override("zh-hans"):
        shown = f"{translated(text)} {' '.join(wants(text))}"

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
        assert translated(sentence(message("starts-now", how=how))) == told
