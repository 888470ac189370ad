"""Rounds that change something are kept and can be read again."""

import hashlib
from dataclasses import replace
from datetime import timedelta

import pytest

from scheduling.common.canonical_json import canonical_json
from scheduling.core.round.decide import DECISION_VERSION
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from scheduling.rounds.services import evidence, rounds
from scheduling.storage.directory import DirectoryStorage
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import CONFIG

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(tmp_path):
    make_cluster()
    make_priority_classes()
    make_virtual_cluster()

    def run_round(at=NOW):
        return rounds.run_round(
            now=lambda: at,
            config=CONFIG,
            store=lambda number, reading, result: evidence.store_round(
                storage=DirectoryStorage(tmp_path), number=number, reading=reading, result=result
            ),
        )

    return run_round


def test_a_round_that_starts_something_is_kept_whole(run, tmp_path):
    job = make_job(worker={"devices": 2})

    run()

    stored = Round.objects.get()
    document = evidence.read_round(storage=DirectoryStorage(tmp_path), stored=stored)
    assert document["snapshot"]["queued"][0]["id"] == job.pk
    assert document["result"]["starts"][0]["job_id"] == job.pk
    assert len(stored.snapshot_sha256) == 64


# Fields of device sharing are left out where nobody shares.
EMPTY_FIELDS = (
    b',"grids":{},"given_sizes":{},"hosts":[],"guests":[],"guest_needs":{}'
    b',"peers":[],"peer_needs":{},"pair_paces":{}',
    b',"suspect_devices":[]',
    b',"guests":[],"guest_leaves":[],"promotions":[],"peers":[]',
    b',"cpu_pools":[],"cpu_queued":[],"cpu_holding":[]',
    b',"cpu_starts":[],"cpu_preemptions":[]',
)


def test_what_is_spelled_part_by_part_reads_as_if_spelled_whole(run, tmp_path):
    kept = []
    make_job(worker={"devices": 2})
    waits = [make_job(worker={"devices": 8, "instances": 9}) for _ in range(3)]

    def store(number, reading, result):
        document = {
            "decision_version": DECISION_VERSION,
            "format": 1,
            "snapshot": reading.snapshot,
            "result": result,
        }
        whole = canonical_json(document)
        for empty in EMPTY_FIELDS:
            assert whole.count(empty) == 1
            whole = whole.replace(empty, b"")
        kept.append(whole)
        return evidence.store_round(
            storage=DirectoryStorage(tmp_path), number=number, reading=reading, result=result
        )

    def run_at(at):
        rounds.run_round(now=lambda: at, config=CONFIG, store=store)

    for minutes in range(3):
        make_job()
        run_at(NOW + timedelta(minutes=minutes))
        Job.objects.unscoped().filter(pk=waits[minutes].pk).update(priority=minutes)

    stored = Round.objects.order_by("number").values_list("snapshot_sha256", flat=True)
    assert [hashlib.sha256(document).hexdigest() for document in kept] == list(stored)


def test_a_round_that_changes_nothing_keeps_nothing(run, tmp_path):
    run()

    with pytest.raises(FileNotFoundError):
        evidence.read_round(storage=DirectoryStorage(tmp_path), stored=Round.objects.get())


def test_a_file_that_was_changed_is_not_believed(run, tmp_path):
    make_job()
    run()
    stored = Round.objects.get()
    stored.snapshot_sha256 = "0" * 64

    with pytest.raises(ValueError, match="hash"):
        evidence.read_round(storage=DirectoryStorage(tmp_path), stored=stored)


def test_old_files_and_those_beyond_the_limit_go_and_their_rows_stay(run, tmp_path):
    for number in range(3):
        make_job()
        run(NOW + timedelta(days=number))
    newest = Round.objects.order_by("-number")[0]

    deleted = evidence.prune_rounds(
        storage=DirectoryStorage(tmp_path),
        older_than=NOW + timedelta(hours=1),
        keep_bytes=newest.snapshot_bytes,
    )

    assert deleted == 2
    assert Round.objects.count() == 3
    assert [r.number for r in Round.objects.exclude(snapshot_path="")] == [newest.number]


def test_the_file_of_a_scheduler_that_lost_the_round_replaces_nothing_and_is_pruned(run, tmp_path):
    storage = DirectoryStorage(tmp_path)

    def store(number, reading, result):
        stored = evidence.store_round(
            storage=storage, number=number, reading=reading, result=result
        )
        other = replace(reading, snapshot=replace(reading.snapshot, now=0.0))
        evidence.store_round(storage=storage, number=number, reading=other, result=result)
        return stored

    make_job()
    rounds.run_round(now=lambda: NOW, config=CONFIG, store=store)

    stored = Round.objects.get()
    assert len(list(storage.files("rounds"))) == 2
    assert evidence.read_round(storage=storage, stored=stored)["snapshot"]["now"] != 0.0
    evidence.prune_rounds(storage=storage, older_than=NOW + timedelta(hours=1), keep_bytes=0)
    assert list(storage.files("rounds")) == []


def test_the_same_value_has_one_spelling():
    assert canonical_json({"b": (1, 2), "a": frozenset({3, 1})}) == (b'{"a":[1,3],"b":[1,2]}')
