"""Work that is begun while a group of tasks ends."""

import asyncio

from workers.node_service.directives import begin


async def test_work_is_begun_in_a_living_group_and_put_away_in_an_ending_one():
    done = []

    async def work() -> None:
        done.append(True)

    async with asyncio.TaskGroup() as tasks:
        assert begin(tasks, work())
    assert not begin(tasks, work())

    assert done == [True]
