"""The pages of policies and of what would have been: shadows, questions, progress, answers."""

import html
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from scheduling.clusters.models import VirtualCluster
from scheduling.runs.models import Attempt
from scheduling.storage.directory import DirectoryStorage
from scheduling.what_if.models import WhatIf
from scheduling.what_if.services.what_if import answer_what_if
from tests.support.cluster_pages import (
    HTMX,
    Stage,
    make_stage,
    read,
    sign_in,
    store_a_round,
    words_of,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage() -> Stage:
    return make_stage(2)


def ask(client: Client, **changes: str) -> Any:
    return client.post(
        "/policies/what-if/",
        {"virtual_cluster": "vision-a", "policy": "srtf", "period": "1", **changes},
    )


def test_a_shadow_is_added_watched_and_removed_on_the_page(client: Client, stage: Stage) -> None:
    sign_in(client, "root")
    vc = stage.vision_a

    client.post(f"/policies/{vc.pk}/shadows/", {"add": "srtf", "version": vc.version})
    store_a_round(Path(settings.TESSERA.data_dir))
    watched = words_of(read(client, "/policies/"))
    stored = VirtualCluster.objects.unscoped().get(pk=vc.pk)
    client.post(f"/policies/{vc.pk}/shadows/", {"remove": "0", "version": stored.version})

    assert stored.shadows == [{"policy": "srtf", "policy_args": {}}]
    assert "srtf default parameters Rounds 1 Agreed 100" in watched
    assert VirtualCluster.objects.unscoped().get(pk=vc.pk).shadows == []
    assert "removed" in read(client, "/policies/")


def test_a_shadow_takes_parameters_and_its_replay_begins_with_them(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "root")
    vc = stage.vision_a
    stored = VirtualCluster.objects.unscoped().filter(pk=vc.pk).values_list("shadows", flat=True)
    address = f"/policies/{vc.pk}/shadows/"
    form = {"add": "easyscale", "args_of": "easyscale", "version": vc.version, "arg-mix": "on"}

    fields = read(client, f"{address}fields/?add=easyscale")
    refused = client.post(address, {**form, "arg-most_waste": "7"})
    before = stored.get()
    around = {"with-reserve-head": "on", "with-reserve-head-patience": "600"}
    client.post(address, {**form, **around, "arg-most_waste": "0.5"})
    (replay,) = re.findall(r'href="(/policies/what-if/\?vc=[^"]*)"', read(client, "/policies/"))
    question = read(client, html.unescape(replay))
    odd = read(client, "/policies/what-if/?policy=easyscale&arg-most_waste=x&arg-mix=False")

    assert f'id="shadow-{vc.pk}-arg-most_waste"' in fields
    assert 'name="args_of" value="easyscale"' in fields
    assert refused.status_code == 422
    assert 'value="7"' in refused.content.decode()
    assert before == []
    assert stored.get() == [
        {
            "policy": "easyscale",
            "policy_args": {
                "most_waste": 0.5,
                "revert": False,
                "wrap": {"reserve-head": {"patience": 600.0}},
            },
        }
    ]
    assert 'name="with-reserve-head-patience" value="600.0"' in question
    assert " checked" in question.split('name="with-reserve-head"')[1].split(">")[0]
    assert [ticked(question, name) for name in ("mix", "revert")] == [True, False]
    assert 'name="arg-most_waste" value="0.5"' in question
    assert [ticked(odd, name) for name in ("mix", "revert")] == [False, True]
    assert 'name="arg-most_waste" value="0.3"' in odd


def ticked(page: str, parameter: str) -> bool:
    """Whether the box of a parameter is ticked."""
    (box,) = re.findall(f'<input[^>]*name="arg-{parameter}"[^>]*>', page)
    return " checked" in box


def test_a_shadow_without_its_fields_has_the_defaults_also_where_they_are_true(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "root")

    sent = {"add": "easyscale", "version": stage.vision_a.version}
    client.post(f"/policies/{stage.vision_a.pk}/shadows/", sent)

    stored = VirtualCluster.objects.unscoped().get(pk=stage.vision_a.pk)
    assert stored.shadows == [{"policy": "easyscale", "policy_args": {}}]


def test_the_fields_of_a_shadow_are_shown_to_those_who_see_the_virtual_cluster(
    client: Client, stage: Stage
) -> None:
    def fields(name: str, vc_id: int) -> int:
        page = f"/policies/{vc_id}/shadows/fields/?add=fifo"
        return sign_in(client, name).get(page, headers={"HX-Request": "true"}).status_code

    assert fields("lena", stage.vision_a.pk) == 200
    assert fields("bob", stage.vision_a.pk) == 404
    assert fields("lena", 999) == 404


def test_no_policy_is_added_where_none_was_chosen(client: Client, stage: Stage) -> None:
    sign_in(client, "root")

    sent = {"add": "", "version": stage.vision_a.version}
    refused = client.post(f"/policies/{stage.vision_a.pk}/shadows/", sent)

    assert refused.status_code == 422
    assert VirtualCluster.objects.unscoped().get(pk=stage.vision_a.pk).shadows == []


def test_one_sees_policies_of_ones_own_tenants_and_edits_none_without_the_right(
    client: Client, stage: Stage
) -> None:
    text = read(sign_in(client, "alice"), "/policies/")
    foreign = client.post(f"/policies/{stage.language_a.pk}/shadows/", {"add": "srtf"})
    own = client.post(f"/policies/{stage.vision_a.pk}/shadows/", {"add": "srtf"}, follow=True)

    assert "vision-a" in text
    assert "language-a" not in text
    assert "Add a shadow" not in text
    assert foreign.status_code == 404
    assert VirtualCluster.objects.unscoped().get(pk=stage.vision_a.pk).shadows == []
    assert own.status_code == 200


def test_a_question_waits_is_answered_and_shown_with_winners_and_losers(
    client: Client, stage: Stage
) -> None:
    store_a_round(Path(settings.TESSERA.data_dir))
    Attempt.objects.update(running_at=timezone.now())
    asked = ask(sign_in(client, "alice"), **{"devices-a": "4"})
    address = asked.headers["Location"]
    waits = read(client, address, **HTMX)
    pk = WhatIf.objects.unscoped().get().pk

    answer_what_if(
        pk=pk,
        storage=DirectoryStorage(Path(settings.TESSERA.data_dir)),
        now=timezone.now() + timedelta(minutes=1),
    )
    done = words_of(read(client, address))
    part = client.get(address, headers=HTMX)

    assert "Queued: what-ifs run one at a time" in waits
    assert "srtf, with 4 × a" in done
    assert done.index("Accuracy of the replay") < done.index("Mean time to completion")
    assert "waits-here" in done
    assert part.headers["HX-Refresh"] == "true"
    assert read(sign_in(client, "bob"), address, status=404)

    # A result that an earlier version stored.
    row = WhatIf.objects.unscoped().get()
    for later in ("accuracy", "others"):
        del row.result[later]
    row.save(update_fields=["result"])
    earlier = words_of(read(sign_in(client, "alice"), address))
    assert "Mean time to completion" in earlier
    assert "Accuracy of the replay" not in earlier


def test_a_question_that_cannot_be_asked_comes_back_with_its_faults(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "alice")

    for changes in (
        {"virtual_cluster": "language-a"},
        {"policy": "none"},
        {"devices-a": "-1"},
        {"period": "", "since": "2026-01-01T00:00", "until": "2025-01-01T00:00"},
    ):
        assert ask(client, **changes).status_code == 422, changes
    assert not WhatIf.objects.unscoped().exists()


def test_one_question_is_answered_at_a_time_and_then_the_next(
    client: Client, stage: Stage, tmp_path: Path
) -> None:
    sign_in(client, "alice")
    ask(client)
    ask(client)
    first, second = WhatIf.objects.unscoped().order_by("id")
    WhatIf.objects.unscoped().filter(pk=first.pk).update(begun_at=timezone.now())

    beside = answer_what_if(pk=second.pk, storage=DirectoryStorage(tmp_path), now=timezone.now())
    WhatIf.objects.unscoped().filter(pk=first.pk).update(begun_at=None)
    call_command("answer_what_ifs", verbosity=0)

    assert not beside
    assert all(row.finished_at for row in WhatIf.objects.unscoped())
