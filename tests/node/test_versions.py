"""Unused versions of the node's code are removed, and versions in use are not."""

import os
import time
from pathlib import Path

from session import Session, make_spec, wait_until

from tessera import protocol
from tessera.bundle import build_bundle
from tessera.node import versions
from tessera.node.runs import Store
from tessera.protocol import RunStatus

OLD = time.time() - 10 * 86_400


def install(home: Path, name: str, *, days_ago: float = 10) -> Path:
    """A version's directory, last touched ``days_ago``."""
    folder = home / ".tessera" / name
    folder.mkdir(parents=True)
    bundle = folder / "node.pyz"
    bundle.write_bytes(build_bundle().data)
    moment = time.time() - days_ago * 86_400
    os.utime(folder, (moment, moment))
    return bundle


def names(*letters: str) -> list[str]:
    return [letter * 64 for letter in letters]


def there(home: Path) -> set[str]:
    return {path.name[0] for path in (home / ".tessera").iterdir() if len(path.name) == 64}


def store_at(home: Path) -> Store:
    found = Store(str(home / ".tessera"))
    found.create()
    return found


def record(store: Store, bundle: str = "", phase: str = protocol.RUNNING) -> str:
    """A run directory in some phase, noted for a version; returns the run's id."""
    spec = make_spec()
    run = store.run(spec.run_id)
    Path(run.path).mkdir()
    run.record(RunStatus(run_id=spec.run_id, phase=phase, hostname="another-machine"))
    if bundle:
        versions.note_use(run, bundle)
    return spec.run_id


def test_the_newest_two_stay_and_older_ones_go(home: Path) -> None:
    for age, name in enumerate(names("a", "b", "c", "d"), start=2):
        install(home, name, days_ago=age)
    store = store_at(home)

    gone = versions.put_away(store, bundle="/elsewhere/tessera")

    assert sorted(gone) == names("c", "d")
    assert there(home) == {"a", "b"}
    assert len(list(Path(store.trash).iterdir())) == 2


def test_a_version_that_a_run_needs_stays_until_the_run_has_ended(home: Path) -> None:
    bundles = {
        name[0]: install(home, name, days_ago=age)
        for age, name in enumerate(names("a", "b", "c", "d"), start=2)
    }
    store = store_at(home)
    run_id = record(store, str(bundles["d"]), phase=protocol.PREPARED)
    record(store, str(bundles["c"]), phase=protocol.EXITED)

    versions.put_away(store, bundle="")
    kept = there(home)
    run = store.run(run_id)
    run.record(RunStatus(run_id=run_id, phase=protocol.EXITED))
    versions.put_away(store, bundle="")

    assert (kept, there(home)) == ({"a", "b", "d"}, {"a", "b"})


def test_a_run_started_by_newer_code_than_prepared_it_needs_both(home: Path) -> None:
    bundles = {
        name[0]: install(home, name, days_ago=age)
        for age, name in enumerate(names("a", "b", "c", "d", "e"), start=2)
    }
    store = store_at(home)
    run = store.run(record(store, str(bundles["c"])))

    for bundle in (bundles["d"], bundles["d"]):
        versions.note_use(run, str(bundle))
    versions.put_away(store, bundle="")

    assert run.versions() == names("c", "d")
    assert there(home) == {"a", "b", "c", "d"}


def test_a_run_that_tells_no_version_keeps_all(home: Path) -> None:
    for name in names("a", "b", "c"):
        install(home, name)
    store = store_at(home)
    record(store)

    assert versions.put_away(store, bundle="") == []
    assert there(home) == {"a", "b", "c"}


def test_a_version_used_today_stays(home: Path) -> None:
    for age, name in enumerate(names("a", "b", "c")):
        install(home, name, days_ago=age / 10)

    assert versions.put_away(store_at(home), bundle="") == []


def test_other_names_are_let_be(home: Path) -> None:
    for name in names("a", "b", "c"):
        install(home, name)
    store = store_at(home)
    (home / ".tessera" / ("A" * 64)).mkdir()
    (home / ".tessera" / "notes").write_text("mine")

    versions.put_away(store, bundle="")

    assert (home / ".tessera" / "notes").read_text() == "mine"
    assert "A" in there(home)


def replace_in_file(path: Path, old: bytes, new: bytes) -> None:
    """Overwrite a part of a file that a process has open."""
    with path.open("r+b") as file:
        at = file.read().index(old)
        file.seek(at)
        file.write(new)


def test_the_version_of_a_live_session_and_its_job_stays(home: Path) -> None:
    bundle = install(home, "f" * 64)
    session = Session(home, bundle=bundle)
    spec = make_spec("exec sleep 60")
    session.start(spec)
    session.close()
    os.utime(bundle.parent, (OLD, OLD))
    for name in names("a", "b", "c"):
        install(home, name, days_ago=2)
    store = store_at(home)
    noted = store.run(spec.run_id).versions()

    gone = versions.put_away(store, bundle="")
    replace_in_file(Path(store.run(spec.run_id).file(protocol.STATE_FILE)), b"f" * 64, b"e" * 64)
    assert store.run(spec.run_id).versions() == ["e" * 64]  # its process is seen, too
    versions.put_away(store, bundle="")

    assert noted == ["f" * 64]

    assert len(gone) == 1
    assert there(home) >= {"f"}


def test_a_greeting_removes_old_versions(home: Path) -> None:
    for name in names("a", "b", "c", "d"):
        install(home, name)
    own = install(home, "f" * 64)

    session = Session(home, bundle=own)
    session.ask("hello", protocol=protocol.PROTOCOL_VERSION)

    assert len(there(home)) == 2
    assert "f" in there(home)
    wait_until(
        lambda: not list((home / ".tessera" / "trash").iterdir()), "the trash to be emptied"
    )
    session.close()
