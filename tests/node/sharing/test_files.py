"""Files of device sharing: exact formats, hostile contents, and the coordinator's lock."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.device_sharing import DeviceOrder, GuestOrder
from tessera.node.sharing import bounds, files

GUEST = GuestOrder(run_id="abcdef01.worker.0", slot=1, floor=1, most=2)
ORDERS = files.Orders(3, "abcdef00.worker.0", DeviceOrder(0, 0.05, [GUEST], drain=True))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)


def test_a_bound_reads_back_as_it_was_written() -> None:
    bound = bounds.issued(None, 0.04, 1 << 30, 10.0)
    document = files.bound_document(bound, host="/phase", why="probe")

    assert bounds.parsed(json.loads(json.dumps(document))) == bound
    assert document == {
        "version": 1,
        "number": 1,
        "compute": 0.04,
        "memory": 1 << 30,
        "until": 13.0,
        "host": "/phase",
        "why": "probe",
        "leave": False,
        "lifted": False,
    }


def test_orders_read_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / files.ORDERS_FILE
    path.write_text(json.dumps(files.orders_document(ORDERS)))

    assert files.read_orders(str(tmp_path)) == ORDERS


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"number": True}, {"slowdown": 0.6}, {"more": 1}, {"number": -1}]
)
def test_malformed_orders_count_as_missing(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / files.ORDERS_FILE
    path.write_text(json.dumps({**files.orders_document(ORDERS), **change}))

    assert files.read_orders(str(tmp_path)) is None


def test_links_pipes_and_large_files_count_as_missing(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_text("{}")
    (tmp_path / "link").symlink_to(good)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text('{"a": "' + "x" * (20 << 10) + '"}')

    assert files.read_document(str(good)) == {}
    for name in ("link", "pipe", "large", "absent"):
        assert files.read_document(str(tmp_path / name)) is None


def test_a_device_without_a_plain_uuid_is_named_by_its_number() -> None:
    assert files.device_dir("/r", 3, "GPU-1a") == "/r/devices/GPU-1a"
    assert files.device_dir("/r", 3) == "/r/devices/slot-3"
    assert files.device_dir("/r", 3, "../../etc") == "/r/devices/slot-3"


def test_the_lock_names_its_holder_and_is_free_when_the_holder_is_killed(tmp_path: Path) -> None:
    place = str(tmp_path / "devices" / "slot-0")
    code = (
        "import sys, time; from tessera.node.sharing import files;"
        "files.lock_device(sys.argv[1], 'abcdef00.worker.0', 1, 2); print(flush=True);"
        "time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, place], stdout=subprocess.PIPE)
    assert other.stdout
    other.stdout.readline()

    assert files.coordinator_of(place) == "abcdef00.worker.0"
    assert files.lock_device(place, "abcdef02.worker.0", 1, 2) is None
    assert files.coordinator_of(place) == "abcdef00.worker.0"
    other.kill()
    other.communicate()
    assert files.coordinator_of(place) == ""
    descriptor = files.lock_device(place, "abcdef02.worker.0", 1, 2)
    assert descriptor is not None
    assert files.coordinator_of(place) == "abcdef02.worker.0"
    os.close(descriptor)


def test_guests_see_the_phase_of_the_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "phase")
    holder = files.PhasePage(path, create=True)
    guest = files.PhasePage(path)

    holder.write(busy=True, now=12.5, gap=0.25)

    assert guest.read() == ((True, 12.5), 0.25)
    page = (tmp_path / "phase").read_bytes()
    assert len(page) == 4096
    assert page[0] == 1
    assert int.from_bytes(page[8:16], sys.byteorder) == 12_500_000_000
    holder.write(busy=False, now=13.0, gap=0.25, short=True)
    assert guest.read() == ((False, 13.0), 0.25)
    assert (tmp_path / "phase").read_bytes()[:2] == b"\0\1"


def test_a_phase_file_that_is_too_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "phase").write_bytes(b"\1")

    with pytest.raises((OSError, ValueError)):
        files.PhasePage(str(tmp_path / "phase"))


@given(document=st.dictionaries(st.sampled_from(["sharing", "each", "local_rank"]), JSON))
def test_hostile_reports_give_numbers_in_range_or_nothing(document) -> None:
    report = files.report_of(document)
    steps = files.steps_of(document, after=5.0, now=10.0)

    assert report is None or 0 <= report.module_seconds <= 3600
    latest = 5.0
    for start, end in steps:
        assert latest <= start < end <= 10.0
        latest = end


def test_steps_that_overlap_known_ones_are_cut_and_other_processes_count_for_nothing() -> None:
    each = [[1.0, 6.0], [6.0, 7.0], [8.0, 11.0], [float("nan"), 9.0]]

    assert files.steps_of({"each": each}, 5.0, 10.0) == [(5.0, 6.0), (6.0, 7.0), (7.0, 9.0)]
    assert files.steps_of({"each": each, "local_rank": 1}, 5.0, 10.0) == []
