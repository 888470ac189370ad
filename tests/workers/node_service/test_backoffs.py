"""Tries to reach a node that was given up."""

from collections.abc import Callable

import pytest

from tests.support.fake_transport import FakeNode, FakeTransport, until
from workers.node_service.backoffs import Backoffs
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

    backoffs = Backoffs(owner="service", connect=connect, write=write, first=0.01)
    backoffs.begin(ADDRESS, silent=None)
    # The note, two extensions, and the deletion after the third try.
    await until(lambda: (tries, writes) == ([3], [4]), seconds=10)
    await backoffs.close()

    assert len([entry for entry in caplog.records if entry.levelname == "ERROR"]) == 3
