"""A job's checkpoints outlive its attempts on a node, and go some days after the last one."""

import os
from pathlib import Path

import pytest
from session import Session, make_spec, wait_until

from tessera import protocol
from tessera.node import checkpoints
from tessera.node.runs import Store

SAVE = """python3 - <<'END'
from tessera import train
state = train.resume() or {"step": 0}
print("found step", state["step"])
train.checkpoint({"step": state["step"] + 5}, step=state["step"] + 5)
END"""
LATER = checkpoints.KEPT_SECONDS + 60


def test_the_next_attempt_continues_from_the_last_checkpoint(session: Session) -> None:
    first, second = make_spec(SAVE, job_id="41"), make_spec(SAVE, job_id="41")
    stranger = make_spec(SAVE, job_id="42")
    for spec in (first, second, stranger):
        session.start(spec)
        assert session.exit_of(spec).exit.code == 0  # type: ignore[union-attr]

    assert "found step 0" in session.log(first)
    assert "found step 5" in session.log(second)
    assert "found step 0" in session.log(stranger)


def test_nothing_is_made_without_isolation_for_a_job_that_saves_nothing(plain: Session) -> None:
    spec = make_spec("true")
    plain.start(spec)
    plain.exit_of(spec)

    assert not (plain.home / ".tessera" / protocol.CHECKPOINTS_DIR).exists()


@pytest.mark.parametrize("job_id", ["../../etc", "a/b", ".", "", "x" * 200, "läufer", "-rf"])
def test_no_name_leads_out_of_the_place(job_id: str) -> None:
    path = protocol.checkpoint_dir("/root", make_spec(job_id=job_id, installation="../up"))

    assert os.path.normpath(path) == path
    top, owner, job = path.rsplit("/", 2)
    assert top == f"/root/{protocol.CHECKPOINTS_DIR}"
    assert len(owner) == len(job) == 64


class TestOldOnes:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        found = Store(str(tmp_path / "node"))
        found.create()
        return found

    def saved(self, store: Store, job_id: str, age: float) -> Path:
        path = Path(protocol.checkpoint_dir(store.root, make_spec(job_id=job_id)))
        (path / "step-000000000001").mkdir(parents=True)
        os.utime(path, (1e9 - age, 1e9 - age))
        return path

    def test_they_go_and_younger_ones_stay(self, store: Store) -> None:
        old, young = self.saved(store, "1", LATER), self.saved(store, "2", 60)

        checkpoints.put_away(store, 1e9)

        assert not old.exists()
        assert young.exists()

    def test_a_node_without_any_has_nothing_to_do(self, store: Store) -> None:
        checkpoints.put_away(store, 1e9)

        assert not (Path(store.root) / protocol.CHECKPOINTS_DIR).exists()

    def test_the_target_of_a_link_stays(self, store: Store, tmp_path: Path) -> None:
        precious = tmp_path / "precious"
        (precious / "data").mkdir(parents=True)
        old = self.saved(store, "1", LATER)
        link = old.parent / "2"
        link.symlink_to(precious)
        os.utime(link, (0, 0), follow_symlinks=False)

        checkpoints.put_away(store, 1e9)

        assert (precious / "data").exists()


def test_checkpoints_of_an_existing_run_stay_at_any_age(session: Session) -> None:
    spec = make_spec(f"{SAVE}\nexec sleep 600", job_id="43")
    session.start(spec)
    root = session.ask("hello", protocol=1)["hello"]["root"]
    kept = Path(protocol.checkpoint_dir(root, spec))
    wait_until(kept.exists, "the checkpoint")

    checkpoints.put_away(Store(root), kept.stat().st_mtime + LATER)

    assert kept.exists()
    session.ask("stop", run_id=spec.run_id, grace_seconds=0.1, reason="user")
    session.exit_of(spec)


def test_names_that_a_job_has_made_without_end_are_not_all_read(
    session: Session,
) -> None:
    store = Store(str(session.home / protocol.ROOT_DIR))
    folder = Path(protocol.checkpoint_dir(store.root, make_spec(job_id="44")))
    folder.mkdir(parents=True)
    for number in range(checkpoints.MOST_NAMES + 50):
        (folder / f"step-{number:012d}").touch()
    here = os.open(folder, os.O_RDONLY)

    try:
        found = checkpoints._names(here)
        again = checkpoints._names(here)
    finally:
        os.close(here)

    assert len(found) == checkpoints.MOST_NAMES
    assert again == found
