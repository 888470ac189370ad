"""The whole matrix of models, workers, processes and nodes, for an hour of its own.

Only `soak` marks it, so that the quick runs with PyTorch leave it out.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from tests.support.elastic_training import (
    EVERY,
    STEPS,
    Phase,
    Training,
    random_phases,
    run,
)
from tests.support.two_nodes import HERE, Node, two_nodes

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

Fixed = Callable[[str, int], dict[int, str]]
MODELS = [("cnn", 4), ("cnn", 8), ("transformer", 4), ("transformer", 8)]


@pytest.fixture(scope="module", autouse=True)
def _with_torch() -> None:
    pytest.importorskip("torch")


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Fixed:
    """What one process gives that nobody disturbs; each is trained when it is first asked for."""

    @cache
    def train(model: str, workers: int) -> dict[int, str]:
        place = tmp_path_factory.mktemp(f"{model}{workers}")
        found = run(Training(model, workers, place), [Phase()])
        assert set(found) == set(range(EVERY, STEPS + 1, EVERY))
        return found

    return train


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with two_nodes() as nodes:
        yield nodes


@pytest.mark.parametrize("processes", [2, 3, 4])
@pytest.mark.parametrize(("model", "workers"), MODELS)
def test_every_number_of_processes_gives_the_same_bits(
    model: str,
    workers: int,
    processes: int,
    tmp_path: Path,
    fixed: Fixed,
) -> None:
    found = run(Training(model, workers, tmp_path), [Phase(processes=processes)])

    assert found == fixed(model, workers)


@pytest.mark.parametrize("case", [*product(MODELS, range(4), ("one node", "two nodes"))], ids=str)
def test_resizes_kills_and_moves_leave_no_trace_on_any_nodes(
    case: tuple[tuple[str, int], int, str],
    tmp_path: Path,
    fixed: Fixed,
    nodes: list[Node],
) -> None:
    (model, workers), seed, spread = case
    places = nodes if spread == "two nodes" else [HERE]
    phases = random_phases(seed, resizes=6, kills=3, most=4, workers=workers, nodes=places)

    found = run(Training(model, workers, tmp_path), phases)

    wanted = fixed(model, workers)
    assert {step: found.get(step) for step in wanted} == wanted
