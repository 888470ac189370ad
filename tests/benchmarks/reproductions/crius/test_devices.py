"""Devices of the rules ``crius``: occupants, offers and swaps."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reproductions.crius.devices import IDLE, Span, Table
from tests.benchmarks.reproductions.crius.toys import layout

NODES = tuple(range(7))


def counted(table):
    """The idle devices by node and the devices by job and node, counted one by one."""
    free: dict[int, int] = {}
    held: dict[int, dict[int, int]] = {}
    for node in NODES:
        codes = [table.owner[slot] for slot in table.layout.slots(node)]
        free[node] = sum(code < 0 for code in codes)
        for code in codes:
            job = code if code >= 0 else -2 - code
            if code != IDLE:
                held.setdefault(job, {}).setdefault(node, 0)
                held[job][node] += 1
    return free, held


def test_types_are_searched_in_the_order_of_the_artefact_and_nodes_numbered_as_given():
    plan = layout()

    assert plan.search == ("a100", "v100", "a40")
    assert plan.nodes == {"a100": range(2), "v100": range(2, 3), "a40": range(3, 7)}
    assert plan.best("a40", 8) == Span("a40", 4, 2)
    assert plan.best("a100", 2) == Span("a100", 1, 2)


def test_a_job_gets_the_first_idle_devices_of_each_node():
    table = Table(layout())

    assert table.place(7, 2, [0])
    assert table.place(8, 4, [0, 1])
    assert not table.place(9, 2, [0, 1, 2, 3][:1])

    assert table.owner[:8] == [7, 7, 8, 8, 8, 8, IDLE, IDLE]
    assert table.span(8) == Span("a100", 2, 2)
    assert table.jobs() == [7, 8]


def test_offered_devices_are_idle_for_others_and_return_to_their_job():
    table = Table(layout())
    table.place(7, 4, [0])
    table.offer(7)

    assert table.free(0) == 4
    assert table.jobs() == []
    assert table.place(8, 1, [0])
    assert (table.count(7), table.count(8)) == (3, 1)
    table.withdraw()
    assert table.owner[:4] == [8, 7, 7, 7]


def test_a_copy_is_independent():
    table = Table(layout())
    table.place(7, 4, [0])
    other = table.copy()

    other.clear(7)

    assert table.owner[:4] == [7, 7, 7, 7]
    assert table.span(7) == Span("a100", 1, 4)
    assert other.span(7) is None
    assert table.changed(other) == [7]
    assert other.changed(table) == []


def test_fillers_leave_only_the_own_devices_of_a_job_idle():
    table = Table(layout())
    table.place(7, 2, [0])
    before = table.owner[:]
    table.fill_idle(7)

    assert [table.free(node) for node in NODES] == [2, 0, 0, 0, 0, 0, 0]
    assert not table.remove_fillers()
    table.place(7, 2, [0])
    assert table.remove_fillers()
    assert table.owner == before


def test_complete_nodes_are_swapped_with_their_occupants():
    table = Table(layout())
    table.place(7, 4, [1])
    table.place(8, 2, [0])

    table.swap(7, 1, 0)

    assert table.owner[:8] == [7, 7, 7, 7, 8, 8, IDLE, IDLE]
    assert (table.free(0), table.free(1)) == (0, 2)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["place", "clear", "keep", "offer", "withdraw", "lift"]),
            st.integers(0, 3),
            st.sampled_from([1, 2, 4]),
            st.lists(st.sampled_from(NODES), min_size=1, max_size=2, unique=True),
        ),
        max_size=25,
    )
)
def test_counts_follow_every_change(steps):
    table = Table(layout())
    for name, job, count, nodes in steps:
        if name == "place" and count % len(nodes) == 0:
            room = [table.free(node) + table.on(job, node) for node in nodes]
            assert table.place(job, count, nodes) or min(room) < count // len(nodes)
        elif name == "clear":
            table.clear(job)
        elif name == "keep":
            table.keep(job, nodes[0], count)
        elif name == "offer":
            table.offer(job)
        elif name == "withdraw":
            table.withdraw()
        else:
            table.lift(nodes)

        free, held = counted(table)
        assert {node: table.free(node) for node in NODES} == free
        assert {
            j: {n: table.on(j, n) for n in table.nodes(j)} for j in range(4) if table.nodes(j)
        } == ({j: dict(sorted(nodes.items())) for j, nodes in held.items()})
