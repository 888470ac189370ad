"""Training by logical workers gives the same bits on however many processes, whatever happens."""

from pathlib import Path

import pytest

from tests.support.elastic_training import (
    EVERY,
    STEPS,
    Phase,
    Training,
    events,
    random_phases,
    run,
)
from tests.support.two_nodes import two_nodes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

SAVED = set(range(EVERY, STEPS + 1, EVERY))


@pytest.fixture(scope="module", autouse=True)
def _with_torch() -> None:
    pytest.importorskip("torch")


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], dict[int, str]]:
    """What one process gives that nobody disturbs."""
    return {
        (model, workers): run(
            Training(model, workers, tmp_path_factory.mktemp(f"{model}{workers}")), [Phase()]
        )
        for model, workers in (("cnn", 4), ("transformer", 8))
    }


def check_same(found: dict[int, str], wanted: dict[int, str]) -> None:
    """Each checkpoint of the undisturbed run has been made with the same hash."""
    assert set(wanted) == SAVED
    assert {step: found.get(step) for step in wanted} == wanted


@pytest.mark.parametrize("processes", [2, 3])
def test_any_number_of_processes_gives_the_bits_of_one(
    processes: int, tmp_path: Path, fixed: dict[tuple[str, int], dict[int, str]]
) -> None:
    found = run(Training("cnn", 4, tmp_path), [Phase(processes=processes)])

    check_same(found, fixed["cnn", 4])


def test_resizes_and_kills_leave_no_trace_in_the_bits(
    tmp_path: Path, fixed: dict[tuple[str, int], dict[int, str]]
) -> None:
    phases = random_phases(4, resizes=5, kills=2, most=4, workers=4)

    found = run(Training("cnn", 4, tmp_path), phases)

    check_same(found, fixed["cnn", 4])


def test_resizes_and_kills_on_two_nodes_leave_no_trace_in_the_bits(
    tmp_path: Path, fixed: dict[tuple[str, int], dict[int, str]]
) -> None:
    with two_nodes() as nodes:
        phases = random_phases(8, resizes=5, kills=2, most=4, workers=8, nodes=nodes)

        found = run(Training("transformer", 8, tmp_path), phases)

    check_same(found, fixed["transformer", 8])


def test_an_uneven_layout_and_an_idle_process_change_nothing(
    tmp_path: Path, fixed: dict[tuple[str, int], dict[int, str]]
) -> None:
    found = run(Training("cnn", 4, tmp_path), [Phase(processes=3, layout=(1, 0, 3))])

    check_same(found, fixed["cnn", 4])


def test_workers_that_move_between_running_processes_leave_no_trace(
    tmp_path: Path, fixed: dict[tuple[str, int], dict[int, str]]
) -> None:
    moves = {0: [[1, 3]], 5: [[3], [1]], 9: [[5, -1]], 13: [[4], [0]], 17: [[2, 1, 1]]}
    wishes = {step: {"layout": layout, "throttle": 0.9} for step, layout in moves.items()}

    found = run(Training("cnn", 4, tmp_path), [Phase(processes=2, wishes=wishes)])

    check_same(found, fixed["cnn", 4])
    counts = [told["counts"] for told in events(tmp_path, "layout")]
    assert counts == [[2, 2], [1, 3], [3, 1], [4, 0]]  # what does not fit changes nothing


def test_loading_processes_change_nothing(
    tmp_path: Path, fixed: dict[tuple[str, int], dict[int, str]]
) -> None:
    phases = [Phase(processes=2, leave_after=9), Phase()]

    found = run(Training("cnn", 4, tmp_path, loading_processes=2), phases)

    check_same(found, fixed["cnn", 4])


@pytest.mark.parametrize("state", ["python", "numpy", "torch", "buffers"])
def test_every_captured_state_is_needed(
    state: str, tmp_path: Path, fixed: dict[tuple[str, int], dict[int, str]]
) -> None:
    found = run(Training("cnn", 4, tmp_path, without=state), [Phase(processes=2)])

    assert found != fixed["cnn", 4]


@pytest.mark.parametrize("state", ["sampler", "samples", "position"])
def test_every_state_of_the_feed_is_needed_also_with_loading_processes(
    state: str, tmp_path: Path, fixed: dict[tuple[str, int], dict[int, str]]
) -> None:
    phases = [Phase(processes=2, leave_after=9), Phase()]

    found = run(Training("cnn", 4, tmp_path, loading_processes=1, without=state), phases)

    assert set(found) >= SAVED
    assert {step: found[step] for step in SAVED} != fixed["cnn", 4]


def test_the_chance_of_dropout_is_needed(
    tmp_path: Path, fixed: dict[tuple[str, int], dict[int, str]]
) -> None:
    phases = [Phase(processes=2, leave_after=9), Phase()]

    found = run(Training("transformer", 8, tmp_path, without="dropout"), phases)

    assert {step: found[step] for step in SAVED} != fixed["transformer", 8]


@pytest.mark.parametrize("state", ["contexts", "shared", "optimizer", "scheduler"])
def test_every_state_that_is_kept_is_needed_when_training_goes_on(
    state: str, tmp_path: Path, fixed: dict[tuple[str, int], dict[int, str]]
) -> None:
    phases = [Phase(processes=2, leave_after=9), Phase()]

    found = run(Training("cnn", 4, tmp_path, without=state), phases)

    assert set(found) >= SAVED
    assert {step: found[step] for step in SAVED} != fixed["cnn", 4]
