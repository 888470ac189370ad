"""``manage.py replay_rounds``: the stored rounds of this installation decided again."""

import hashlib
from io import StringIO
from pathlib import Path

import orjson
import pytest
import zstandard
from django.conf import settings
from django.core.management import CommandError, call_command

from scheduling.common.canonical_json import canonical_json
from scheduling.core.round.decide import DECISION_VERSION
from scheduling.rounds.models import Round
from scheduling.rounds.services.evidence import read_round
from scheduling.storage.directory import DirectoryStorage
from tests.factories.job_history import three_finished_jobs

__all__ = ["three_finished_jobs"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def tmp_path(db):
    """The data directory of this installation."""
    place = Path(settings.TESSERA.data_dir)
    place.mkdir(parents=True, exist_ok=True)
    return place


def replay(**options):
    out = StringIO()
    call_command("replay_rounds", stdout=out, **options)
    return out.getvalue()


def rewrite(data_dir, **changes):
    """Change the first stored round as another version would have written it."""
    row = Round.objects.exclude(snapshot_path="").earliest("number")
    document = {**read_round(storage=DirectoryStorage(data_dir), stored=row), **changes}
    (data_dir / row.snapshot_path).write_bytes(
        zstandard.ZstdCompressor().compress(canonical_json(document))
    )
    digest = hashlib.sha256(canonical_json(document)).hexdigest()
    Round.objects.filter(pk=row.pk).update(snapshot_sha256=digest)
    return row.number


def other_result(data_dir):
    row = Round.objects.exclude(snapshot_path="").earliest("number")
    return {**read_round(storage=DirectoryStorage(data_dir), stored=row)["result"], "starts": []}


def test_all_stored_rounds_give_their_decisions(tmp_path, three_finished_jobs):
    assert replay() == (
        "3 stored rounds: 0 of this version differ, 0 of other versions, 0 unreadable\n"
    )
    assert replay(first=2, last=2).startswith("1 stored rounds")
    row = Round.objects.exclude(snapshot_path="").earliest("number")
    assert (
        read_round(storage=DirectoryStorage(tmp_path), stored=row)["decision_version"]
        == DECISION_VERSION
    )


def test_a_difference_in_this_version_fails(tmp_path, three_finished_jobs):
    number = rewrite(tmp_path, result=other_result(tmp_path))

    out = StringIO()
    with pytest.raises(CommandError):
        call_command("replay_rounds", stdout=out)
    assert f"round {number} (version {DECISION_VERSION}): starts\n" in out.getvalue()


def test_a_difference_to_another_version_is_only_reported(tmp_path, three_finished_jobs):
    number = rewrite(tmp_path, result=other_result(tmp_path), decision_version=0)

    text = replay()

    assert f"round {number} (version 0): starts\n" in text
    assert "0 of this version differ, 1 of other versions" in text


def test_an_unreadable_file_fails(tmp_path, three_finished_jobs):
    rewrite(tmp_path, snapshot=orjson.loads(b"{}"))

    with pytest.raises(CommandError):
        replay()
