"""The whole matrix of models, workers, processes and nodes, for an hour of its own.

Only `soak` marks it, so that the quick runs with PyTorch leave it out.
"""

from collections.abc import Iterator
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

MODELS = [("cnn", 4), ("cnn", 8), ("transformer", 4), ("transformer", 8)]


@pytest.fixture(scope="module", autouse=True)
def _with_torch() -> None:
    pytest.importorskip("torch")


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], dict[int, str]]:
    """What one process gives that nobody disturbs."""
    found = {
        (model, workers): run(
            Training(model, workers, tmp_path_factory.mktemp(f"{model}{workers}")), [Phase()]
        )
        for model, workers in MODELS
    }
    assert all(set(hashes) == set(range(EVERY, STEPS + 1, EVERY)) for hashes in found.values())
    return found


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
    fixed: dict[tuple[str, int], dict[int, str]],
) -> None:
    found = run(Training(model, workers, tmp_path), [Phase(processes=processes)])

    assert found == fixed[model, workers]


@pytest.mark.parametrize("case", [*product(MODELS, range(4), ("one node", "two nodes"))], ids=str)
def test_resizes_kills_and_moves_leave_no_trace_on_any_nodes(
    case: tuple[tuple[str, int], int, str],
    tmp_path: Path,
    fixed: dict[tuple[str, int], dict[int, str]],
    nodes: list[Node],
) -> None:
    (model, workers), seed, spread = case
    places = nodes if spread == "two nodes" else [HERE]
    phases = random_phases(seed, resizes=6, kills=3, most=4, workers=workers, nodes=places)

    found = run(Training(model, workers, tmp_path), phases)

    assert {step: found.get(step) for step in fixed[model, workers]} == fixed[model, workers]
