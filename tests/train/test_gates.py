"""Gates and memory bound of a PyTorch guest: where gates are, what stays, and equal bits."""

import hashlib
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from tessera.node.sharing import bounds  # noqa: E402
from tessera.train.gates import Attachment  # noqa: E402
from tessera.train.guest_gate import Gate  # noqa: E402
from tessera.train.spilling import Spill  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]


class OpenGate(Gate):
    """A gate that counts its passes, with a bound that the test sets."""

    def __init__(self) -> None:
        super().__init__("/nonexistent")
        self.passes = 0
        self.given: bounds.Bound | None = None

    @property
    def bound(self) -> bounds.Bound | None:
        return self.given

    def wait(self) -> float:
        self.passes += 1
        return 0.0


def model_of(width: int = 64) -> Any:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh()),
        torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()),
        torch.nn.Linear(width, 4),
    )


def train(model: Any, steps: int, before: Any = lambda: None) -> str:
    """Train some steps; the hash of all parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    draws = torch.Generator().manual_seed(3)
    for _ in range(steps):
        before()
        batch = torch.randn(128, model[0][0].in_features, generator=draws)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def test_each_leaf_module_has_a_gate_forward_and_backward() -> None:
    gate, model = OpenGate(), model_of()
    attachment = Attachment(gate, model, None)

    model(torch.ones(2, 64)).sum().backward()

    assert len(attachment.gated) == 5
    assert gate.passes == 10
    assert gate.listens == "module"
    attachment.close()
    model(torch.ones(2, 64)).sum().backward()
    assert gate.passes == 10


def test_gates_move_up_from_modules_that_are_too_short() -> None:
    gate, model = OpenGate(), model_of(8)
    attachment = Attachment(gate, model, None)

    train(model, 40)

    assert len(attachment.gated) < 5


def test_a_job_that_is_no_guest_has_no_gates() -> None:
    attachment = Attachment(None, model_of(), None)

    assert attachment.gated == []


@pytest.mark.parametrize("part", [0.0, 0.25, 0.5])
def test_saved_activations_stay_within_the_budget(part: float) -> None:
    model = model_of(256)
    batch = torch.randn(512, 256)
    spill = Spill(model)
    spill.begin(1 << 40)
    kept = model(batch)
    spill.end()
    whole = spill.highest
    del kept
    assert whole > 1 << 20
    assert spill.kept == 0

    spill.begin(int(whole * part))
    loss = model(batch).sum()
    spill.end()
    highest, spilled = spill.highest, spill.spilled
    loss.backward()

    assert highest <= whole * part
    assert spilled >= whole * (1 - part) - (1 << 20)
    del loss
    assert spill.kept == 0


def test_a_bound_counts_from_the_next_mini_batch_on() -> None:
    gate, model = OpenGate(), model_of(256)
    attachment = Attachment(gate, model, None)
    assert attachment.spill is not None
    gate.given = bounds.Bound(1, 1.0, 1 << 40, 1e12)
    batch = torch.randn(512, 256)
    first = model(batch).sum()
    gate.given = bounds.Bound(2, 1.0, 0, 1e12)
    assert attachment.spill.spilled == 0

    second = model(batch).sum()

    assert attachment.spill.spilled > 0
    (first + second).backward()


def test_a_storm_of_1000_bounds_changes_no_bit() -> None:
    alone = train(model_of(), 1000)
    gate, model = OpenGate(), model_of()
    attachment = Attachment(gate, model, None)
    draws, spilled = random.Random(1), 0

    def next_bound() -> None:
        nonlocal spilled
        assert attachment.spill is not None
        spilled += attachment.spill.spilled
        number = 1 if gate.given is None else gate.given.number + 1
        gate.given = bounds.Bound(number, draws.random(), draws.choice([0, 80_000, 200_000]), 1e12)

    assert train(model, 1000, next_bound) == alone
    assert gate.given is not None
    assert gate.given.number == 1000
    assert spilled > 1 << 20


def test_memory_of_a_guest_is_reported(tmp_path: Path) -> None:
    gate, model = OpenGate(), model_of()
    Attachment(gate, model, SimpleNamespace(state={}))

    resident = 2 * sum(one.numel() * 4 for one in model.parameters())
    assert gate.memory() == {"reserved": resident, "spilled": 0}
