"""Tries to reach a node that was given up."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from tessera.protocol import NodeHello
from tests.support.fake_transport import FakeNode, FakeTransport, until
from workers.node_service.backoffs import Backoffs
from workers.node_service.connection import SignIns
from workers.node_service.ports import NodeAddress

ADDRESS = NodeAddress(node_id=1, name="node-1", host="node-1", port=22, user="u", host_key="")


class Broken(FakeTransport):
    """A transport whose close fails in an unexpected way."""

    async def close(self) -> None:
        raise ValueError("unexpected")


async def test_unexpected_errors_are_logged_and_do_not_end_the_tries(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node, tries, writes = FakeNode(), [0], [0]

    def connect(address: NodeAddress, progress: object) -> FakeTransport:
        tries[0] += 1
        if tries[0] == 1:
            raise ValueError("unexpected")
        return Broken(node) if tries[0] == 2 else FakeTransport(node)

    async def write(call: Callable[[], None]) -> None:
        writes[0] += 1
        if writes[0] == 1:
            raise RuntimeError("unexpected")

    backoffs = Backoffs(
        owner="service", connect=connect, sign_in=SignIns().place, write=write, first=0.01
    )
    backoffs.begin(ADDRESS, silent=None)
    # The note, two extensions, and the deletion after the third try.
    await until(lambda: (tries, writes) == ([3], [4]), seconds=10)
    await backoffs.close()

    assert len([entry for entry in caplog.records if entry.levelname == "ERROR"]) == 3


async def test_many_nodes_are_tried_a_few_at_a_time() -> None:
    opening, most, opened = 0, 0, set[int]()

    class Counted(FakeTransport):
        async def open(self) -> NodeHello:
            nonlocal opening, most
            opening += 1
            most = max(most, opening)
            await asyncio.sleep(0.001)
            opening -= 1
            return await super().open()

    def connect(address: NodeAddress, progress: object) -> FakeTransport:
        opened.add(address.node_id)
        return Counted(FakeNode())

    async def write(call: Callable[[], None]) -> None:
        """Write nothing."""

    sign_ins = SignIns(most=2, slow_seconds=60)
    backoffs = Backoffs(
        owner="service", connect=connect, sign_in=sign_ins.place, write=write, first=0.01
    )
    for number in range(20):
        backoffs.begin(replace(ADDRESS, node_id=number), silent=None)
    await until(lambda: not backoffs._tasks, seconds=30)
    await backoffs.close()

    assert len(opened) == 20
    assert most == 2
