"""Objects loaded at the start are excluded from garbage collection."""

import gc

import pytest
from celery.signals import task_prerun
from django.db import connections

from portal import memory
from scheduling.tasks import run_round


@pytest.fixture(autouse=True)
def collector():
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_objects_loaded_at_the_start_are_frozen_and_later_ones_are_not() -> None:
    memory.settle()

    frozen = gc.get_freeze_count()
    later = [[number] for number in range(1000)]

    assert frozen > 10_000
    assert gc.get_freeze_count() <= frozen
    assert gc.get_threshold() == memory.THRESHOLDS
    assert gc.is_tracked(later)


def test_workers_settle_when_they_are_ready_and_so_do_their_children() -> None:
    from celery.signals import worker_process_init, worker_ready

    import portal.celery  # noqa: F401 connects them

    for signal in (worker_process_init, worker_ready):
        assert any(receiver() is memory.settle for _, receiver in signal.receivers)


def test_threads_of_a_worker_keep_their_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for alias in connections:
        monkeypatch.setitem(connections.settings[alias], "CONN_MAX_AGE", 0)

    memory.keep_connections()

    assert {connections.settings[alias]["CONN_MAX_AGE"] for alias in connections} == {60}


@pytest.mark.parametrize(("is_eager", "looks"), [(False, 1), (True, 0)])
def test_a_worker_checks_its_connections_before_each_task(
    monkeypatch: pytest.MonkeyPatch, is_eager: bool, looks: int
) -> None:
    import portal.celery  # noqa: F401 connects it

    looked: list[None] = []
    checked = "close_if_unusable_or_obsolete"
    monkeypatch.setattr(connections["default"], checked, lambda: looked.append(None))
    run_round.push_request(is_eager=is_eager)  # type: ignore[call-arg]  # the stubs name no field

    try:
        task_prerun.send(sender=run_round)
    finally:
        run_round.pop_request()

    assert len(looked) == looks
