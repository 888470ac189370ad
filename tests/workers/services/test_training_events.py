"""What a training tells of its checkpoints is read as hostile text, and bounded."""

import json
import re
from datetime import datetime
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from scheduling.jobs.models import Job
from scheduling.runs.models import Member
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import run_round
from workers.services.dispatch import rank_of
from workers.services.job_reports import Happened
from workers.services.training_events import KINDS, MOST_AT_ONCE, TrainingEvents, read_happening

HASH = "0123456789abcdef" * 4


def line(**told: Any) -> bytes:
    return json.dumps({"event": "checkpoint", **told}).encode()


def test_a_checkpoint_is_read_with_its_receipt() -> None:
    found = read_happening(line(step=1200, sha256=HASH, bytes=10, seed=3, logical_workers=8))

    assert found is not None
    assert found.text == "Checkpoint of step 1,200 saved, 0123456789ab."
    assert found.facts == {
        "step": 1200,
        "sha256": HASH,
        "bytes": 10,
        "seed": 3,
        "logical_workers": 8,
    }


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("resumed", "Training continues from the checkpoint of step 7, 0123456789ab."),
        ("checkpoint-failed", "The checkpoint of step 7 could not be saved: disk full."),
        ("checkpoint-broken", "The checkpoint step-7 is damaged: disk full; the previous one"),
    ],
)
def test_the_others_say_what_happened(kind: str, text: str) -> None:
    told = line(event=kind, step=7, sha256=HASH, reason="disk full", path="step-7")

    found = read_happening(told)

    assert found is not None
    assert found.text.startswith(text)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (
            {"event": "acknowledged", "reason": "preempt"},
            "The job has acknowledged the notice to leave",
        ),
        (
            {"event": "batch", "step": 1200, "batch": 512},
            "It trains with 512 samples per step from",
        ),
        ({"event": "layout", "counts": [2, 2, 1]}, "Logical workers by process: 2, 2, 1."),
        (
            {"event": "determinism", "level": "D2", "refused": True, "obstacles": ["a Conv2d"]},
            "D2 is refused: a Conv2d.",
        ),
        ({"event": "determinism", "level": "D1", "refused": False}, "The model supports D1"),
        (
            {"event": "determinism", "level": ["D2"], "obstacles": {"a": 1}},
            "The model supports the level",
        ),
    ],
)
def test_what_a_training_does_is_reported_in_words(told: dict[str, Any], text: str) -> None:
    found = read_happening(json.dumps(told).encode())

    assert found is not None
    assert found.text.startswith(text)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b'{"step": 1}',
        b'{"event": "party"}',
        b'{"event": ["checkpoint"]}',
        b'["event"]',
        b'{"event"',
        b'{"event": "checkpoint", "pad": "' + b"x" * (64 << 10) + b'"}',
        b"[" * 50_000 + b'"event"',
    ],
)
def test_what_is_not_known_is_nothing(raw: bytes) -> None:
    assert read_happening(raw) is None


@given(
    st.dictionaries(
        st.sampled_from(["step", "sha256", "bytes", "seconds", "reason", "path", "level", "x"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=400),
    ),
    st.sampled_from(KINDS),
)
def test_whatever_is_told_the_text_is_one_short_line(told: dict[str, Any], kind: str) -> None:
    found = read_happening(json.dumps({**told, "event": kind}).encode())

    assert found is not None
    assert len(found.text) < 500
    assert found.text.isprintable()
    assert "x" not in found.facts
    json.dumps(dict(found.facts), allow_nan=False)


def test_a_crowd_of_checkpoints_leaves_the_newest_and_others_are_bounded() -> None:
    happenings = TrainingEvents()
    for number in range(100):
        for kind in ("checkpoint-failed", "checkpoint-failed", "checkpoint"):
            found = read_happening(line(event=kind, step=number))
            assert found is not None
            happenings.add(found)

    taken = happenings.take()

    assert len(taken) <= MOST_AT_ONCE + 1
    assert [one.facts["step"] for one in taken if one.kind == "checkpoint"] == [99]
    assert happenings.take() == ()


@pytest.mark.django_db
def test_rows_of_jobs_that_have_saved_are_taken_in_the_order_of_their_ids(now: datetime) -> None:
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=1)
    jobs = [make_job().pk for _ in range(2)]
    run_round(now)
    saved = read_happening(line(step=1, sha256=HASH))
    assert saved is not None
    news = [
        Happened(node_id=member.node_id, rank=rank_of(member), happenings=(saved,))
        for member in Member.objects.select_related("attempt__job").order_by("-attempt__job_id")
    ]

    with CaptureQueriesContext(connection) as asked:
        Happened.write_all(news, now)

    statements = [one["sql"] for one in asked if '"saved_at" =' in one["sql"]]
    assert [int(re.findall(r'"id" = (\d+)', sql)[0]) for sql in statements] == jobs
    assert set(Job.objects.unscoped().values_list("saved_at", flat=True)) == {now}
