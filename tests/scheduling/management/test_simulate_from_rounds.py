"""``manage.py simulate --from-rounds``: past days of this installation under another policy."""

import json
from io import StringIO
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from tests.factories.cluster import NOW
from tests.factories.job_history import three_finished_jobs

__all__ = ["three_finished_jobs"]
pytestmark = pytest.mark.django_db
SINCE, UNTIL = NOW.isoformat(), NOW.replace(hour=23).isoformat()


@pytest.fixture
def tmp_path(db):
    """Where this installation keeps its rounds."""
    place = Path(settings.TESSERA.data_dir)
    place.mkdir(parents=True, exist_ok=True)
    return place


def replayed(**options):
    out = StringIO()
    call_command("simulate", from_rounds=True, stdout=out, stderr=out, **options)
    return out.getvalue()


def test_winners_and_losers_go_to_the_terminal_and_to_a_file(
    three_finished_jobs, tmp_path_factory
):
    figures = tmp_path_factory.mktemp("out") / "what-if.json"
    given = {"vc": "vision-a", "since": SINCE, "until": UNTIL, "size_aware": True}

    text = replayed(**given, policy="srtf", json=figures)
    again = replayed(**given, policy="srtf")

    document = json.loads(figures.read_text())
    assert (document["winner"], document["loser"]) == (2, 1)
    assert "2 faster, 1 slower, 0 unchanged, 0 not finished" in text
    assert "1 jobs never ran" in text
    assert text.index("replayed starts: 3 jobs, 100.0% within 10 s") < text.index("srtf")
    assert text == again
    (loser,) = (line for line in text.splitlines() if line.endswith("loser"))
    assert loser.split() == [
        str(three_finished_jobs[0].pk),
        "1000",
        "1000",
        "1200",
        "200",
        "loser",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "srtf"}, "specify --vc; known: language-a, vision-a"),
        ({"policy": "srtf", "vc": "no-such"}, "virtual cluster 'no-such' not found"),
        ({"policy": "lottery", "vc": "vision-a"}, "policy 'lottery' not found"),
        ({"vc": "vision-a"}, "give --policy"),
        (
            {"policy": "srtf", "vc": "vision-a", "since": "noon"},
            "--since is not a valid point in time",
        ),
        ({"policy": "srtf", "vc": "vision-a"}, "contains no stored rounds"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(three_finished_jobs, options, message):
    with pytest.raises(CommandError, match=message):
        replayed(**options)
