"""Removes each part of a checkpoint in turn, and checks for a difference. Needs PyTorch.

Call it in a separate process, since trainings change global settings of PyTorch.
"""

import copy
import io
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tessera.train import randomness
from tessera.train.adaptive import AdaptiveBatch
from tessera.train.codec import read_state, write_state
from tessera.train.logical import LogicalWorkers
from tessera.train.workers import Feed
from tests.support.elastic_models import Convolutions, Drawn, loss_of, numpy_draw

BEFORE, AFTER = 3, 1
"""Steps up to the checkpoint at which training resumes, and from there to the next one."""

REDUNDANT = ("scheduler", "_last_lr")
"""Values that PyTorch stores only for display and recomputes before use."""

_MISSING = object()
Path_ = tuple[Any, ...]


class MemorySaver:
    """Stores one checkpoint in memory, as the bytes of its file."""

    def __init__(self, state: Any = None) -> None:
        self.kept, self._state = b"", state

    def save(self, _step: int, state: Any, **_receipt: Any) -> None:
        self.kept = as_bytes(state)

    def load(self) -> Any:
        return None if self._state is None else (None, self._state)


def try_all(kind: str, directory: Path) -> dict[str, Any]:
    """Train, and resume from the checkpoint without each of its changed parts in turn.

    Returns:
        ``changed``: the parts; ``needless``: paths of values without an effect; ``goes on alike``:
        whether the complete checkpoint reproduces an uninterrupted training bit by bit.
    """
    make = _MAKERS[kind]
    os.environ["TESSERA_JOB_BATCH"] = str(directory / "batch.json")
    (directory / "batch.json").write_text(json.dumps({"batch": 16, "accumulation": 8}))
    fresh = dict(_leaves(read_state(io.BytesIO(_train(make, 0)))))
    state = _train(make, BEFORE)
    wanted = _train(make, BEFORE + AFTER, state)
    changed = [
        path
        for path, value in _leaves(read_state(io.BytesIO(state)))
        if path[:2] != REDUNDANT and as_bytes(value) != as_bytes(fresh.get(path))
    ]
    needless = [path for path in changed if _is_alike(make, _without(state, path, fresh), wanted)]
    return {
        "goes on alike": wanted == _train(make, BEFORE + AFTER),
        "changed": sorted({_part(path) for path in changed}),
        "needless": ["/".join(map(str, path)) for path in needless],
    }


def as_bytes(state: Any) -> bytes:
    """Return a state as the bytes of a file."""
    file = io.BytesIO()
    write_state(state, file)
    return file.getvalue()


def _train(make: Callable[[Any], Any], steps: int, state: Any = None) -> bytes:
    """Return the checkpoint after a number of steps, from the start or from a state."""
    saver = MemorySaver(read_state(io.BytesIO(state)) if isinstance(state, bytes) else state)
    elastic = make(saver)
    for _ in elastic.steps(1_000_000):
        if elastic.done >= steps:
            break
        elastic.step(lambda batch: loss_of(elastic.model, batch))
        drawn = random.random() + numpy_draw(0.0, 1.0) + float(torch.rand(()))
        extra = getattr(elastic, "extra", {})  # like a script between two steps
        extra["drawn"] = extra.get("drawn", 0.0) + drawn
    elastic.save()
    return saver.kept


def _is_alike(make: Callable[[Any], Any], state: Any, wanted: bytes) -> bool:
    try:
        return _train(make, BEFORE + AFTER, state) == wanted
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return False


def _logical(saver: Any) -> LogicalWorkers:
    model, optimizer, scheduler = _model()
    feed = Feed(Drawn((3, 8, 8)), batch_size=4, seed=3)
    return LogicalWorkers(
        model, optimizer, feed, workers=2, seed=5, scheduler=scheduler, saver=saver
    )


def _adaptive(saver: Any) -> AdaptiveBatch:
    model, optimizer, scheduler = _model()
    return AdaptiveBatch(
        model,
        optimizer,
        Drawn((3, 8, 8)),
        initial_batch=8,
        largest_micro=4,
        seed=3,
        scheduler=scheduler,
        saver=saver,
    )


_MAKERS: Mapping[str, Callable[[Any], Any]] = {"logical": _logical, "adaptive": _adaptive}


def _model() -> tuple[nn.Module, Any, Any]:
    randomness.seed_all(0)
    model = Convolutions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def _leaves(state: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    if isinstance(state, dict):
        for name, value in state.items():
            yield from _leaves(value, (*path, name))
    elif isinstance(state, list | tuple):
        for place, value in enumerate(state):
            yield from _leaves(value, (*path, place))
    else:
        yield path, state


def _without(state: bytes, path: Path_, fresh: Mapping[Path_, Any]) -> Any:
    """Return the state with the initial value of one entry; without the entry if it had none."""
    whole = read_state(io.BytesIO(state))
    return _replaced(whole, path, copy.deepcopy(fresh.get(path, _MISSING)))


def _replaced(state: Any, path: Path_, value: Any) -> Any:
    if not path:
        return value
    if isinstance(state, dict):
        inner = _replaced(state[path[0]], path[1:], value)
        changed = {**state, path[0]: inner}
        if inner is _MISSING:
            del changed[path[0]]
        return changed
    items = [
        _replaced(item, path[1:], value) if place == path[0] else item
        for place, item in enumerate(state)
    ]
    return type(state)(item for item in items if item is not _MISSING)


def _part(path: Path_) -> str:
    """Return the part of a checkpoint that a value belongs to."""
    if path[0] == "contexts":
        return f"contexts/{path[3] if path[2] == 'chance' else path[2]}"
    return f"{path[0]}/{path[1]}" if path[0] in {"shared", "chance"} else str(path[0])
