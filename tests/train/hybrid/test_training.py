"""Training under parallel plans gives the losses of one process, also after a change of plan."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from tests.support.hybrid_models import (  # noqa: E402
    ONE,
    Case,
    difference,
    named,
    plan_of,
    require_equal,
    train,
)

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
QUICK = [[(2, 2)], [(2, 1), (1, 2)], [(1, 1), (1, 1), (2, 1)]]


@pytest.mark.parametrize("shapes", QUICK, ids=named)
def test_a_plan_trains_like_one_process(shapes: list[tuple[int, int]], tmp_path: Path) -> None:
    require_equal(Case(steps=10, optimizer="sgd"), plan_of(*shapes), 1e-5, tmp_path)


def test_tied_weights_clipping_schedules_and_gpipe_give_the_same_losses(tmp_path: Path) -> None:
    case = Case(
        steps=8, optimizer="adamw", dtype="float64", tied=True, decay=0.9, options={"clip": 0.5}
    )
    plan = plan_of((1, 2), (2, 1), schedule="gpipe")
    require_equal(case, plan, 1e-12, tmp_path)


def test_dropout_and_recomputed_layers_do_not_depend_on_the_pipeline(tmp_path: Path) -> None:
    case = Case(steps=6, dtype="float64", dropout=0.2)
    alone = train(case, ONE, tmp_path / "one")
    again = Case(steps=6, dtype="float64", dropout=0.2, options={"recompute": True})

    losses = train(again, plan_of((1, 1), (1, 1), (1, 1)), tmp_path / "plan")

    assert difference(losses, alone) <= 1e-12


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_passes_in_short_types_learn(precision: str, tmp_path: Path) -> None:
    case = Case(steps=12, optimizer="adamw", options={"precision": precision})

    losses = train(case, plan_of((1, 2), (1, 1)), tmp_path)

    assert losses[-1] < 0.9 * losses[0]


def test_a_training_resumes_under_another_plan_without_losing_a_step(tmp_path: Path) -> None:
    case = Case(steps=12, optimizer="adamw", dtype="float64", tied=True, decay=0.95)
    alone = train(case, ONE, tmp_path / "one")
    plans = [
        plan_of((1, 2), (2, 1)),
        plan_of((2, 2)),
        plan_of((1, 1), (1, 1), (1, 1), (1, 1), schedule="gpipe"),
        ONE,
    ]

    losses: list[float] = []
    for number, plan in enumerate(plans):
        leave_after = -1 if plan is plans[-1] else 3 * number + 2
        losses += train(case, plan, tmp_path / "moved", leave_after=leave_after)

    assert len(losses) == 12
    assert difference(losses, alone) <= 1e-12
