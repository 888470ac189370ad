"""Every page is made in Chinese for whoever chose it, and no English words are left on it.

What is no word of ours is excepted by rule: names of people and things, identifiers, commands,
and what stands on a page as it was written.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Final

import pytest
from django.test import Client

from portal.web.policy_fields import policy_names
from scheduling.core.policies import COMBINATORS, POLICIES, parameters_of
from scheduling.models import LogRule, PriorityClass
from tenants.models import User
from tests.support.cluster_pages import Stage, make_stage, sign_in

pytestmark = pytest.mark.django_db

PAGES: Final = (
    "/",
    "/?view=table",
    "/jobs/",
    "/jobs/?state=ended&q=nothing",
    "/jobs/{job}/",
    "/jobs/{running}/",
    "/jobs/{running}/logs/",
    "/jobs/{running}/attempts/",
    "/jobs/{running}/events/",
    "/jobs/{running}/receipts/",
    "/jobs/{running}/spec/",
    "/jobs/{running}/calls/",
    "/jobs/{job}/evidence/",
    "/submit/",
    "/job-templates/",
    "/sweeps/",
    "/sweeps/new/",
    "/timeline/",
    "/nodes/",
    "/nodes/new/",
    "/nodes/{node}/",
    "/nodes/{node}/edit/",
    "/virtual-clusters/",
    "/virtual-clusters/new/",
    "/virtual-clusters/reconfigure/",
    "/virtual-clusters/{vc}/",
    "/virtual-clusters/{vc}/idle/",
    "/priority-classes/",
    "/log-rules/",
    "/tenants/",
    "/tenants/new/",
    "/tenants/{tenant}/",
    "/tenants/{tenant}/edit/",
    "/people/",
    "/tokens/",
    "/usage/",
    "/policies/",
    "/policies/what-if/",
    "/estimates/",
    "/audit/",
    "/notifications/",
    "/hooks/",
    "/announcements/",
    "/password/",
)


READ_ATTRIBUTES: Final = (
    "aria-label",
    "placeholder",
    "title",
    "alt",
    *(f"data-confirm{part}" for part in ("", "-body", "-verb", "-safe")),
)
VERBATIM: Final = frozenset(("code", "kbd", "pre", "script", "style", "textarea", "datalist"))
VOID: Final = frozenset(("input", "meta", "link", "br", "hr", "img"))
PROPER: Final = frozenset(
    [
        "Tessera",
        "API",
        "REST",
        "CLI",
        "YAML",
        "JSON",
        "CSV",
        "GPU",
        "CPU",
        "UTC",
        "SSH",
        "SHA",
        "HMAC",
        "TLS",
        "HTTP",
        "Slurm",
        "OpenPAI",
        "SkyPilot",
        "dstack",
        "Webhook",
        "Webhooks",
        "Python",
        "PyTorch",
        "Git",
        "git",
        "Docker",
        "English",
        "sshd",
        "zip",
        "Authorization",
        "Token",
        "Shift",
        "Enter",
        "Esc",
        "Ctrl",
    ]
)
SPELLED: Final = frozenset(
    [
        "NAME",
        "value",
        "team",
        "rack",
        "Rack",
        "zone",
        "label",
        "failed",
        "preempted",
        "idle",
        "notify",
        "worker",
        "pcie",
        "tests",
    ]
)
"""Words of specifications and labels, which are written as they stand."""

IDENTIFIER: Final = re.compile(
    r"https?://\S*|[a-z]+\.$|/\w[\w/]*|[A-Za-z]*\d\w*|\w+(?:[-_.:@=]\w+)+\.?"
)
WORD: Final = re.compile(r"[A-Za-z]{3,}")


class Texts(HTMLParser):
    """What is read of a page, with its tips and labels."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found += [given[name] or "" for name in READ_ATTRIBUTES if given.get(name)]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if VERBATIM.isdisjoint(self._open):
            self.found.append(" ".join(data.split()))


def english_in(html: str, names: frozenset[str]) -> list[str]:
    """The texts that hold a word which is no name, no identifier and no unit."""
    texts = Texts()
    texts.feed(html)
    any_name = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
    return sorted(
        {
            text
            for text in texts.found
            if not names.issuperset(WORD.findall(IDENTIFIER.sub("", any_name.sub(_bare, text))))
        }
    )


def _bare(found: re.Match[str]) -> str:
    """A name of several words or signs goes; one word stays, to be compared whole."""
    return found[0] if WORD.fullmatch(found[0]) else ""


def names_in_use(stage: Stage) -> Iterator[str]:
    """What people have named, what the policies are called, and what is spelled the same."""
    named = (*stage.nodes, stage.vision, stage.language, stage.vision_a, stage.language_a)
    yield from (row.name for row in (*named, stage.running, stage.foreign, stage.waiting))
    yield from User.objects.values_list("username", flat=True)
    yield from PriorityClass.objects.values_list("name", flat=True)
    for rule in LogRule.objects.all():
        yield from (rule.name, rule.pattern)
    yield from policy_names()
    yield from COMBINATORS
    for factory in (*POLICIES.values(), *COMBINATORS.values()):
        yield from (item.name.replace("_", " ").capitalize() for item in parameters_of(factory))
    yield from PROPER | SPELLED


@pytest.fixture
def stage(client: Client) -> Stage:
    made = make_stage(2)
    sign_in(client, "root")
    User.objects.filter(username="root").update(language="zh-hans")
    return made


def test_every_page_speaks_the_chosen_language_and_no_english(
    client: Client, stage: Stage
) -> None:
    numbers = {
        "node": stage.nodes[0].pk,
        "vc": stage.vision_a.pk,
        "tenant": stage.vision.pk,
        "job": stage.waiting.pk,
        "running": stage.running.pk,
    }
    names = frozenset(names_in_use(stage))
    left: dict[str, list[str]] = {}
    for page in PAGES:
        response = client.get(page.format(**numbers))
        assert response.status_code == 200, page
        text = response.content.decode()
        assert '<html lang="zh-hans"' in text, page
        if english := english_in(text, names):
            left[page] = english

    assert left == {}
