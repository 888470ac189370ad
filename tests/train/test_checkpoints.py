"""A checkpoint is whole or not there, is verified before use, and the newest stay."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.train import checkpoints
from tessera.train.checkpoints import CheckpointStore, hash_state
from tessera.train.codec import StateError


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "kept"), keep=2)


def state_at(step: int) -> dict[str, Any]:
    return {"step": step, "weights": np.full(1000, step, dtype=np.float32)}


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in Path(store.directory).iterdir())


def test_the_newest_checkpoint_is_found(store: CheckpointStore) -> None:
    store.save(10, state_at(10))
    saved = store.save(20, state_at(20))

    found = store.load()

    assert found is not None
    checkpoint, state = found
    assert checkpoint == saved
    assert state["step"] == 20
    assert saved.sha256 == hash_state(state)


def test_nothing_is_found_where_nothing_was_saved(store: CheckpointStore) -> None:
    assert store.load() is None


def test_older_ones_go(store: CheckpointStore) -> None:
    for step in (1, 2, 3, 4):
        store.save(step, state_at(step))

    assert names(store) == ["step-000000000003", "step-000000000004"]


def test_the_same_step_can_be_saved_again_and_replaces_nothing_before_it_is_whole(
    store: CheckpointStore,
) -> None:
    for value in (1, 7, 8):
        store.save(1, state_at(value))

    found = store.load()

    assert found is not None
    assert found[1]["step"] == 8
    assert names(store) == ["step-000000000001-1", "step-000000000001-2"]
    store.save(2, state_at(2))
    assert names(store) == ["step-000000000001-2", "step-000000000002"]


def test_a_damaged_checkpoint_goes_when_its_step_is_saved_again(store: CheckpointStore) -> None:
    store.save(1, state_at(1))
    damaged = store.save(2, state_at(2))
    cut_short(Path(damaged.path) / checkpoints.STATE_FILE)
    store.load()

    store.save(2, state_at(2))

    assert names(store) == ["step-000000000001", "step-000000000002-1"]


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip_a_bit, cut_short, Path.unlink])
def test_a_damaged_one_is_passed_over_for_the_one_before(
    store: CheckpointStore, damage: Any
) -> None:
    store.save(1, state_at(1))
    newest = store.save(2, state_at(2))
    damage(Path(newest.path) / checkpoints.STATE_FILE)

    found = store.load()

    assert found is not None
    assert found[0].step == 1
    ((path, reason),) = store.broken
    assert path == newest.path
    assert reason


def test_what_is_saved_behind_damaged_later_ones_stays(store: CheckpointStore) -> None:
    for step in (1, 20, 30):
        store.save(step, state_at(step))
    for step in (20, 30):
        flip_a_bit(Path(store.directory, f"step-{step:012d}", "state"))

    store.save(2, state_at(2))
    found = store.load()
    assert found is not None
    assert found[0].step == 2

    for step in (3, 4):
        store.save(step, state_at(step))
    found = store.load()
    assert found is not None
    assert found[0].step == 4
    flip_a_bit(Path(found[0].path, "state"))
    before = store.load()
    assert before is not None
    assert before[0].step == 3


def test_damaged_ones_go_when_training_has_passed_them(store: CheckpointStore) -> None:
    for step in (10, 20):
        store.save(step, state_at(step))
    flip_a_bit(Path(store.directory, "step-000000000020", "state"))
    store.load()

    for step in (15, 20, 25):
        store.save(step, state_at(step))

    assert names(store) == ["step-000000000020-1", "step-000000000025"]
    assert store.load() is not None
    assert store.broken == []


@pytest.mark.parametrize("manifest", ["", "{", "[]", '{"version": 99}', '{"version": 1}'])
def test_a_damaged_manifest_is_passed_over(store: CheckpointStore, manifest: str) -> None:
    store.save(1, state_at(1))
    newest = store.save(2, state_at(2))
    (Path(newest.path) / checkpoints.MANIFEST_FILE).write_text(manifest)

    found = store.load()

    assert found is not None
    assert found[0].step == 1


def test_a_full_disk_leaves_what_was_there(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(1, state_at(1))

    def no_space(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match="No space"):
            store.save(2, state_at(2))

    found = store.load()
    assert found is not None
    assert found[0].step == 1
    assert names(store) == ["step-000000000001"]


def test_a_state_that_cannot_be_written_leaves_nothing(store: CheckpointStore) -> None:
    with pytest.raises(StateError):
        store.save(1, {"bad": object()})

    assert names(store) == []


KILLED = """
import os, signal, sys
from tessera.train import checkpoints

calls = 0
real = os.fsync

def fsync(descriptor):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    real(descriptor)

store = checkpoints.CheckpointStore(sys.argv[1], keep=1)
store.save(1, {"text": "one"})
os.fsync = fsync
store.save(2, {"text": "two" * 100000})
"""


@pytest.mark.parametrize("instant", [1, 2, 3, 4])
def test_a_kill_in_the_middle_leaves_a_whole_one(store: CheckpointStore, instant: int) -> None:
    source = Path(checkpoints.__file__).parents[2]
    command = [sys.executable, "-c", KILLED, store.directory, str(instant)]
    ended = subprocess.run(command, env={"PYTHONPATH": str(source)}, timeout=60, check=False)
    assert ended.returncode == -9

    found = store.load()
    assert found is not None
    assert found[0].step == (1 if instant < 4 else 2)
    assert not store.broken

    store.save(3, {"text": "three"})
    assert [name for name in names(store) if name.startswith(".")] == []


def test_manifests_are_read_by_people_too(store: CheckpointStore) -> None:
    saved = store.save(5, state_at(5))

    manifest = json.loads((Path(saved.path) / checkpoints.MANIFEST_FILE).read_text())

    assert manifest == {"version": 1, "step": 5, "sha256": saved.sha256, "size": saved.size}


def test_at_least_one_has_to_stay(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep is 0"):
        CheckpointStore(str(tmp_path), keep=0)
