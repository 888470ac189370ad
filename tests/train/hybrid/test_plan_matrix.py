"""Every plan of up to eight processes trains like one process, for 50 steps.

Only `soak` marks it, so that the quick runs with PyTorch leave it out.
"""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from tests.support.hybrid_models import Case, named, plan_of, require_equal  # noqa: E402

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
EQUAL = [
    [(data, tensor)] * stages
    for stages in (1, 2, 4)
    for data in (1, 2)
    for tensor in (1, 2)
    if 1 < stages * data * tensor <= 8
]
MIXED = [
    [(2, 1), (1, 2)],
    [(1, 2), (2, 1)],
    [(2, 1), (1, 2), (2, 1), (1, 2)],
    [(2, 1), (1, 1), (1, 1), (4, 1)],
    [(1, 1), (2, 2), (1, 1)],
]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("shapes", [*EQUAL, *MIXED], ids=named)
def test_every_plan_trains_like_one_process_for_50_steps(
    shapes: list[tuple[int, int]], dtype: str, limit: float, optimizer: str, tmp_path: Path
) -> None:
    case = Case(steps=50, optimizer=optimizer, dtype=dtype)
    require_equal(case, plan_of(*shapes), limit, tmp_path)
