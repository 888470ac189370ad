"""A run that uses more of the disk than it may is stopped, and measuring costs little."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from session import ALICE, SUDO, Session, make_spec, node

from tessera.isolation import USER
from tessera.node.disk import LEAST_SECONDS, Meter
from tessera.node.payload import ProcessPayload
from tessera.node.sizes import LEAST_BYTES, NotMeasuredError, size_of

MIB = 1 << 20


def write(path: Path, size: int) -> None:
    path.write_bytes(os.urandom(size))


def test_files_are_counted_once_and_links_are_not_followed(tmp_path: Path) -> None:
    inner = tmp_path / "top" / "inner"
    inner.mkdir(parents=True)
    write(inner / "file", MIB)
    os.link(inner / "file", inner / "second-name")
    write(tmp_path / "outside", MIB)
    (inner / "link").symlink_to(tmp_path / "outside")
    (inner / "up").symlink_to(tmp_path)

    size = size_of([str(tmp_path / "top"), str(tmp_path / "missing")], 1 << 40)

    assert MIB <= size < MIB + (64 << 10)


def test_a_directory_that_was_made_unreadable_is_counted(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    write(hidden / "file", MIB)
    hidden.chmod(0)

    assert size_of([str(tmp_path)], 1 << 40) >= MIB


def test_a_tree_that_is_too_deep_counts_as_too_large(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)

    try:
        assert measured(Meter([str(tmp_path)], 1 << 40)) == (1 << 40) + 1
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_empty_files_directories_and_links_count_as_much_as_their_least_place(
    tmp_path: Path,
) -> None:
    for number in range(300):
        (tmp_path / f"file-{number}").touch()
        (tmp_path / f"link-{number}").symlink_to("x")
        (tmp_path / f"directory-{number}").mkdir()

    assert 900 * LEAST_BYTES <= size_of([str(tmp_path)], 1 << 40) < 1000 * LEAST_BYTES
    assert measured(Meter([str(tmp_path)], 899 * LEAST_BYTES)) is not None


def test_directories_replaced_during_the_measurement_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("file", "link", "gone"):
        (tmp_path / name).mkdir()
    write(tmp_path / "kept", MIB)

    opening = os.open

    def replace(name: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None and name in ("file", "link", "gone"):
            (tmp_path / name).rmdir()
            if name == "file":
                (tmp_path / name).touch()
            elif name == "link":
                (tmp_path / name).symlink_to("/")
        return opening(name, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", replace)

    assert MIB <= size_of([str(tmp_path)], 1 << 40) < MIB + (64 << 10)
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and not path.is_symlink()]


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_top_that_is_not_a_directory_counts_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()

    assert size_of([str(tmp_path / name)], 1 << 40) == 0


def measured(meter: Meter) -> int | None:
    """The result of the first measurement."""
    assert meter.excess(0.0) is None
    os.set_blocking(meter._result, True)
    return meter.excess(1.0)


def test_a_measurement_that_fails_is_repeated_soon_and_counts_nothing(tmp_path: Path) -> None:
    def fail(_: list[str], __: int) -> int:
        raise NotMeasuredError

    meter = Meter([str(tmp_path)], MIB, fail)
    assert meter.excess(0.0) is None
    os.set_blocking(meter._result, True)

    assert meter.excess(600.0) is None
    meter._measure = lambda *_: 2 * MIB
    assert meter.excess(600.0 + LEAST_SECONDS) is None
    os.set_blocking(meter._result, True)
    assert meter.excess(601.0 + LEAST_SECONDS) == 2 * MIB


def test_a_helper_that_has_ended_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError("no answer")

    payload = ProcessPayload.__new__(ProcessPayload)
    payload._spec = make_spec("true", uid=ALICE)
    # The helper exists only beside an installed sudo rule; here it has ended.
    monkeypatch.setattr("tessera.node.confinement.is_helped", lambda _: True)
    monkeypatch.setattr("tessera.node.helped.size_of", fail)

    with pytest.raises(NotMeasuredError, match="no answer"):
        payload.size_of([], MIB)


def test_no_limit_measures_nothing_and_a_slow_measurement_is_repeated_late(tmp_path: Path) -> None:
    write(tmp_path / "file", MIB)
    assert Meter([str(tmp_path)], 0).excess(0.0) is None
    meter = Meter([str(tmp_path)], 4 * MIB)

    assert measured(meter) is None  # took a second on the clock that was given
    assert meter.excess(50.9) is None
    assert meter._result < 0
    assert meter.excess(51.0) is None
    assert meter._result >= 0
    os.waitpid(meter._child, 0)
    meter.close()


@pytest.mark.parametrize("place", ["work", "checkpoints", "home"])
def test_a_run_above_its_limit_ends_with_class_resource_limit(
    session: Session, place: str
) -> None:
    folder = {"work": ".", "checkpoints": "$TESSERA_JOB_CHECKPOINT_DIR", "home": "$HOME"}[place]
    fill = f"for n in 1 2 3; do head -c 1000000 /dev/urandom > {folder}/$n; done; sleep 1000"
    spec = make_spec(fill, disk_bytes=2 * MIB, grace_seconds=0.5)
    session.start(spec)

    status = session.exit_of(spec)

    assert status.exit is not None
    assert (status.exit.cause, status.exit.failure) == ("disk-limit", "resource-limit")
    # The measurement may meet the last file while it is being written.
    assert re.match(
        "disk-limit: the run uses [23] MiB of disk; the limit is 2", status.exit.message
    )


def test_files_of_another_user_that_hides_them_count_and_directories_alone_do_not() -> None:
    hidden = "umask 077; mkdir hidden; "
    honest = make_spec(f"{hidden} sleep 1000", isolation=USER, uid=ALICE, disk_bytes=2 * MIB)
    fill = f"{hidden} for n in 1 2 3; do head -c 1000000 /dev/zero > hidden/$n; done; sleep 1000"
    large = make_spec(fill, isolation=USER, uid=ALICE, disk_bytes=2 * MIB, grace_seconds=0.5)
    with node(USER, SUDO) as session:
        session.start(honest)
        session.start(large)

        status = session.exit_of(large)

        assert status.exit is not None
        assert status.exit.cause == "disk-limit"
        assert session.status(honest).phase == "running"


def test_a_file_larger_than_the_limit_ends_the_job(session: Session) -> None:
    status, _ = session.run("exec head -c 10000000 /dev/zero > large", disk_bytes=2 * MIB)

    assert status.exit is not None
    assert (status.exit.cause, status.exit.failure) == ("disk-limit", "resource-limit")
    assert status.exit.signal == signal.SIGXFSZ  # the meter may name the limit first
    assert "disk limit" in status.exit.message or "disk-limit" in status.exit.message


def test_a_measurement_leaves_no_child(tmp_path: Path) -> None:
    meter = Meter([str(tmp_path)], 4 * MIB)

    assert measured(meter) is None

    with pytest.raises(ChildProcessError):
        os.waitpid(meter._child, os.WNOHANG)


@pytest.mark.parametrize("error", [None, ValueError()])
def test_a_child_whose_meter_is_closed_ends_itself(
    tmp_path: Path, error: Exception | None
) -> None:
    """The pipe breaks, or an error is raised: the child does not return from the fork."""
    ready, go = os.pipe()

    def measure(*_: object) -> int:
        os.read(ready, 1)
        if error is not None:
            raise error
        return MIB

    meter = Meter([str(tmp_path)], MIB, measure)
    with pytest.MonkeyPatch.context() as patch:
        # Otherwise the child would close the pipe of this test.
        patch.setattr("tessera.node.kernel.close_others", lambda _: None)
        meter.excess(0.0)
    child = meter._child
    meter.close()
    os.write(go, b".")

    assert os.waitpid(child, 0)[1] == 0
    os.close(ready)
    os.close(go)


def test_a_short_run_is_not_measured_and_leaves_no_descriptor(tmp_path: Path) -> None:
    meter = Meter([str(tmp_path)], 1 << 40, begin_at=10.0)
    before = sorted(Path("/proc/self/fd").iterdir())
    assert meter.excess(9.9) is None
    assert sorted(Path("/proc/self/fd").iterdir()) == before

    assert meter.excess(10.0) is None
    assert sorted(Path("/proc/self/fd").iterdir()) != before
    os.waitpid(meter._child, 0)
    meter.close()

    assert sorted(Path("/proc/self/fd").iterdir()) == before
