"""Logs in an object store: bounded parts, two writers, and merges that other hosts observe."""

from collections.abc import Sequence
from itertools import count

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.storage.base import Extent
from scheduling.storage.log_parts import (
    FAN_IN,
    StoredPart,
    cover,
    next_merge,
    parse_part,
    stored_extent,
)
from scheduling.storage.objects import ObjectStorage

CAP = 1 << 40
JOB_IDS = count(1)


def append(parts: list[StoredPart], size: int, *, segment: int) -> list[StoredPart]:
    """Append bytes as ``ObjectLogs.write`` does, without an object store."""
    there = stored_extent(parts)
    position = there.end if there is not None else 0
    end = position + size
    while position < end:
        stop = min(end, position + segment - position % segment)
        parts = [*parts, StoredPart(position, stop, 0)]
        while wanted := next_merge(parts, segment_bytes=segment):
            first, last, level = wanted
            parts = [part for part in parts if not (first <= part.first and part.end <= last)]
            parts.append(StoredPart(first, last, level))
        position = stop
    return parts


@given(sizes=st.lists(st.integers(1, 300), max_size=200), segment=st.sampled_from([64, 1000]))
def test_the_number_of_parts_is_bounded_by_segments_and_levels(
    sizes: list[int], segment: int
) -> None:
    parts: list[StoredPart] = []
    for size in sizes:
        parts = append(parts, size, segment=segment)

    total = sum(sizes)
    appends, levels = len(sizes) + total // segment, 1
    while FAN_IN**levels <= appends:
        levels += 1
    assert len(parts) <= total // segment + (FAN_IN - 1) * levels
    assert stored_extent(parts) == (Extent(0, total) if total else None)
    assert all(part.first // segment == (part.end - 1) // segment for part in parts)


def test_a_segment_of_one_byte_appends_has_few_parts() -> None:
    parts: list[StoredPart] = []
    most = 0
    for _ in range(4096):
        parts = append(parts, 1, segment=4096)
        most = max(most, len(parts))

    assert most <= (FAN_IN - 1) * 4
    assert [(part.first, part.end) for part in parts] == [(0, 4096)]


@given(
    ranges=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=20),
    first=st.integers(0, 80),
    size=st.integers(0, 80),
)
def test_a_cover_reads_each_byte_once_up_to_the_first_gap(
    ranges: list[tuple[int, int]], first: int, size: int
) -> None:
    parts = [StoredPart(begin, begin + length, 0) for begin, length in ranges]
    stored = {at for part in parts for at in range(part.first, part.end)}

    pieces = cover(parts, first, first + size)

    found = [at for piece in pieces for at in range(piece.first, piece.end)]
    expected = []
    for at in range(first, first + size):
        if at not in stored:
            break
        expected.append(at)
    assert found == expected
    assert all(piece.part.first <= piece.first and piece.end <= piece.part.end for piece in pieces)


def test_foreign_objects_are_not_parts() -> None:
    assert parse_part(StoredPart(3, 40, 2).name) == StoredPart(3, 40, 2)
    for name in ("", "x", "0000000000000000", f"{5:016d}-{5:016d}-0", f"{9:016d}-{5:016d}-0"):
        assert parse_part(name) is None


def truth(first: int, end: int) -> bytes:
    """The log on its node: the byte at each offset."""
    return bytes(at * 7 % 251 for at in range(first, end))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from(["append", "append", "append", "take over", "seal"]),
            st.integers(1, 13),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_two_hosts_that_write_one_log_cannot_harm_each_other(
    hosts: tuple[ObjectStorage, ObjectStorage], steps: Sequence[tuple[int, str, int]]
) -> None:
    """A host that has lost its node continues for a while, and both merge what they know."""
    log, offsets = f"{next(JOB_IDS)}/1/worker-0.log", [0, 0]
    for host, kind, size in steps:
        logs = hosts[host].logs
        if kind == "append":
            begin, end = offsets[host], offsets[host] + size
            logs.write(log, offset=begin, data=truth(begin, end), cap_bytes=CAP)
            offsets[host] = end
        elif kind == "take over":
            offsets[host] = logs.extent(log).end
            assert offsets[host] == max(offsets)
        else:
            logs.seal(log)

    whole = truth(0, max(offsets))
    for storage in hosts:
        found = storage.logs.read(log, offset=0, limit=1 << 20)
        assert (found.extent, found.data) == (Extent(0, len(whole)), whole)


def test_the_second_host_continues_where_the_first_ended(
    hosts: tuple[ObjectStorage, ObjectStorage],
) -> None:
    first, second = hosts[0].logs, hosts[1].logs
    first.write("7/1/worker-0.log", offset=0, data=truth(0, 33), cap_bytes=CAP)

    begin = second.extent("7/1/worker-0.log").end
    second.write("7/1/worker-0.log", offset=begin, data=truth(begin, 80), cap_bytes=CAP)

    assert begin == 33
    assert first.read("7/1/worker-0.log", offset=0, limit=99).data == truth(0, 80)


def test_a_sealed_log_has_one_object_per_segment(
    hosts: tuple[ObjectStorage, ObjectStorage],
) -> None:
    logs = hosts[0].logs
    for at in range(35):
        logs.write("7/1/worker-0.log", offset=at, data=truth(at, at + 1), cap_bytes=CAP)

    logs.seal("7/1/worker-0.log")

    names = [found.name.rpartition("/")[2] for found in hosts[1].files("logs/7")]
    assert [name[:33] for name in names] == [
        f"{first:016d}-{end:016d}" for first, end in ((0, 10), (10, 20), (20, 30), (30, 35))
    ]
