"""A driver that hangs costs one process, and the node keeps its devices."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from machines import CLOUD_T4, Machine, Nvml, write_smi
from session import wait_until

from tessera import hardware
from tessera.hardware import Condition
from tessera.node import driver, probe
from tessera.node.driver import DriverBusyError, DriverHungError
from tessera.node.gpus import Reader
from tessera.node.nvml import NvmlReader
from tessera.node.smi import SmiReader

SECONDS = 0.4


class Stuck:
    """A stand-in ``nvidia-smi`` that no signal of its caller ends, like a process in D state.

    It leaves the process group of its caller, and holds what it inherited until the test ends.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "nvidia-smi"
        self.started = folder / "started"
        self.release = folder / "release"
        self.path.write_text(
            "#!/bin/sh\n"
            f'setsid sh -c \'trap "" TERM INT HUP; echo $$ >>{self.started}; '
            f"while [ ! -e {self.release} ]; do sleep 0.05; done'\n"
        )
        self.path.chmod(0o755)

    @property
    def pids(self) -> list[int]:
        text = self.started.read_text() if self.started.exists() else ""
        return [int(line) for line in text.split()]

    @property
    def alive(self) -> list[int]:
        return [pid for pid in self.pids if _is_alive(pid)]


def _is_alive(pid: int) -> bool:
    """Whether a process has not ended; a probe makes this one the parent of orphans."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def stuck(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    found = Stuck(home)
    yield found
    found.release.touch()
    wait_until(lambda: not found.alive, "the end of the stand-in")


def smi_only(descriptors: Sequence[int]) -> list[Reader]:
    return [SmiReader(descriptors)]


def test_a_driver_that_hangs_is_reported_at_the_deadline(home: Path, stuck: Stuck) -> None:
    begin = time.monotonic()

    with pytest.raises(DriverHungError):
        driver.read(str(home), in_detail=False, seconds=SECONDS, readers=smi_only)

    assert SECONDS <= time.monotonic() - begin < SECONDS + 2
    assert len(stuck.alive) == 1


def test_while_a_read_hangs_no_other_process_starts(home: Path, stuck: Stuck) -> None:
    for _ in range(4):
        with pytest.raises(DriverHungError):
            driver.read(
                str(home),
                in_detail=False,
                seconds=SECONDS,
                lock_seconds=SECONDS,
                readers=smi_only,
            )

    assert len(stuck.pids) == 1


def test_a_read_beside_a_hung_one_finds_the_driver_hanging_only_after_its_deadline(
    home: Path, stuck: Stuck
) -> None:
    with pytest.raises(DriverHungError):
        driver.read(str(home), in_detail=False, seconds=SECONDS, readers=smi_only)
    overdue = (home / driver.LOCK_FILE).read_text()

    with pytest.raises(DriverHungError):
        driver.read(str(home), in_detail=True, lock_seconds=0.0, readers=quick)
    (home / driver.LOCK_FILE).write_text(f"{float(overdue) + 3600}")
    with pytest.raises(DriverBusyError):
        driver.read(str(home), in_detail=True, lock_seconds=0.0, readers=quick)


@pytest.fixture
def reading(home: Path, stuck: Stuck) -> Iterator[threading.Thread]:
    """A read in detail that lasts until ``stuck`` is released, within its deadline."""
    first = threading.Thread(
        target=driver.read, args=(str(home),), kwargs={"in_detail": True, "readers": smi_only}
    )
    first.start()
    wait_until(lambda: stuck.alive, "the first read")
    yield first
    stuck.release.touch()
    first.join()


def quick(_descriptors: Sequence[int]) -> list[Reader]:
    return [NvmlReader(Nvml(CLOUD_T4))]


def test_beside_a_slow_read_another_is_skipped(home: Path, reading: threading.Thread) -> None:
    with pytest.raises(DriverBusyError):
        driver.read(str(home), in_detail=False, lock_seconds=SECONDS, readers=quick)


def test_the_deadline_begins_after_the_wait_for_an_earlier_read(
    home: Path, stuck: Stuck, reading: threading.Thread
) -> None:
    release = threading.Timer(2 * SECONDS, stuck.release.touch)
    release.start()

    found = driver.read(str(home), in_detail=False, seconds=SECONDS, readers=quick)

    release.join()
    assert found is not None


def test_an_optional_call_that_does_not_end_leaves_its_facts_unknown(
    home: Path, stuck: Stuck
) -> None:
    script = stuck.path.read_text()
    write_smi(CLOUD_T4, home / "healthy")
    stuck.path.write_text(
        f'#!/bin/sh\ncase "$*" in *query-gpu=*) exec {home}/healthy "$@";; esac\n{script}'
    )
    reader = SmiReader(optional_seconds=SECONDS)

    found = reader.read(in_detail=True)

    assert found is not None
    assert len(found.gpus) == 4
    assert found.cuda == ""
    assert reader.closeness(found.gpus) is None


def test_a_tool_is_run_under_the_lock_and_its_result_stands_while_the_driver_hangs(
    home: Path, stuck: Stuck
) -> None:
    root = str(home)
    assert driver.tool_fault(root, ["sh", "-c", "echo broken; exit 3"]) == "broken"

    assert driver.tool_fault(root, ["nvidia-smi"], seconds=SECONDS).startswith("no response")

    assert len(stuck.alive) == 1
    assert driver.stored_tool_fault(root) == "broken"
    with pytest.raises(DriverHungError):
        driver.read(root, in_detail=False, lock_seconds=SECONDS, readers=quick)


def test_a_child_that_does_not_end_after_its_answer_is_a_driver_that_hangs(home: Path) -> None:
    class Answered(Reader):
        def read(self, *, in_detail: bool) -> None:
            os.closerange(3, 1024)
            signal.pause()

    with pytest.raises(DriverHungError):
        driver.read(str(home), in_detail=False, seconds=SECONDS, readers=lambda _: [Answered()])


def test_a_driver_that_recovers_is_read_again(home: Path, stuck: Stuck) -> None:
    with pytest.raises(DriverHungError):
        driver.read(str(home), in_detail=False, seconds=SECONDS, readers=smi_only)
    stuck.release.touch()
    wait_until(lambda: not stuck.alive, "the end of the stand-in")
    write_smi(CLOUD_T4, stuck.path)

    found = driver.read(str(home), in_detail=False, seconds=20, readers=smi_only)

    assert found is not None
    assert len(found.reading.gpus) == 4


def test_an_answer_is_the_same_on_both_sides_of_the_pipe(home: Path) -> None:
    reader = NvmlReader(Nvml(CLOUD_T4.change(2, processes=((4242, 100), (4243, None)))))

    found = driver.read(str(home), in_detail=True, readers=lambda _: [reader])

    assert found is not None
    assert (found.reader, found.reading) == ("nvml", reader.read(in_detail=True))
    driver.store(str(home), found)
    assert driver.stored(str(home)) == found


def test_a_reader_that_dies_is_no_answer(home: Path) -> None:
    class Broken(Reader):
        def read(self, *, in_detail: bool) -> None:
            os._exit(7)

    assert driver.read(str(home), in_detail=True, readers=lambda _: [Broken()]) is None


def test_nvidia_smi_is_read_if_nvml_has_no_gpu(home: Path, stuck: Stuck) -> None:
    write_smi(CLOUD_T4, stuck.path)
    nothing = NvmlReader(Nvml(Machine(boards=())))

    found = driver.read(str(home), in_detail=True, readers=lambda d: [nothing, SmiReader(d)])

    assert found is not None
    assert found.reader == "nvidia-smi"


def test_a_node_whose_driver_hangs_keeps_its_devices(
    home: Path, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = stuck.path.read_text()
    write_smi(CLOUD_T4, stuck.path)
    before = probe.inventory(str(home))
    stuck.path.write_text(script)

    after = probe.inventory(str(home), driver_seconds=SECONDS)

    assert after.devices == before.devices
    assert after.conditions == [Condition(hardware.DRIVER_HUNG)]
    assert after.driver == "470.57.02"
