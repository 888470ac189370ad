"""Publishing of live updates to websocket groups from any process, without blocking or errors.

A thread with its own event loop owns the channel layer of this process. Whole-page topics are
paced (the newest message of a topic wins, at most four a second); jobs and logs go out at once.
Messages that cannot be sent are dropped: they are hints, and pages fetch the state again.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from channels.layers import get_channel_layer
from django.dispatch import Signal

from portal.live.access import (
    job_group,
    log_group,
    nodes_group,
    overview_group,
    queue_group,
    rounds_group,
)
from scheduling import signals as scheduling_signals
from scheduling.notices.queries import round_beat
from workers import signals as workers_signals

logger = logging.getLogger(__name__)

PACE_SECONDS: Final = 0.25
MOST_WAITING: Final = 2_000
MOST_ANSWERS: Final = 500
MESSAGE_TYPE: Final = "live.message"


class Publisher:
    """The channel layer client of one process.

    Args:
        pace_seconds: time between two messages of one paced group.
    """

    def __init__(self, pace_seconds: float = PACE_SECONDS) -> None:
        self._pace_seconds = pace_seconds
        self._loop = asyncio.new_event_loop()
        self._paced: dict[str, dict[str, Any]] = {}
        self._flushing = False
        self._room = threading.BoundedSemaphore(MOST_WAITING)
        threading.Thread(target=self._run, name="live-publisher", daemon=True).start()

    def send(
        self, group: str, topic: str, data: Mapping[str, Any], *, paced: bool = False
    ) -> None:
        """Queue a message without blocking or raising.

        While the broker is unreachable, the queue holds a limited number of messages and drops
        others.
        """
        if not self._room.acquire(blocking=False):
            return
        message = {
            "type": MESSAGE_TYPE,
            "group": group,
            "topic": topic,
            "version": time.time_ns() // 1_000,
            "data": dict(data),
        }
        try:
            self._loop.call_soon_threadsafe(self._take, group, message, paced)
        except RuntimeError:  # the interpreter is shutting down
            self._room.release()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _take(self, group: str, message: dict[str, Any], paced: bool) -> None:
        if not paced:
            self._loop.create_task(self._send_in_turn(group, message))
            return
        self._room.release()  # the newest message of a group replaces an unsent one
        self._paced[group] = message
        if not self._flushing:
            self._flushing = True
            self._loop.create_task(self._flush())

    async def _flush(self) -> None:
        while self._paced:
            due, self._paced = self._paced, {}
            for group, message in due.items():
                await self._send(group, message)
            await asyncio.sleep(self._pace_seconds)
        self._flushing = False

    async def _send_in_turn(self, group: str, message: dict[str, Any]) -> None:
        try:
            await self._send(group, message)
        finally:
            self._room.release()

    async def _send(self, group: str, message: dict[str, Any]) -> None:
        layer = get_channel_layer()
        if layer is None:
            return
        try:
            await layer.group_send(group, message)
        except Exception as error:
            logger.debug("a live message was dropped: %r", error)


@cache
def publisher() -> Publisher:
    """Return this process's publisher, started with its first message."""
    return Publisher()


def connect() -> None:
    """Connect the receivers of this module to the signals of ``scheduling``; idempotent."""
    for signal, receiver in _receivers():
        signal.connect(receiver, dispatch_uid=_uid(receiver))


def disconnect() -> None:
    for signal, receiver in _receivers():
        signal.disconnect(dispatch_uid=_uid(receiver))


def _receivers() -> tuple[tuple[Signal, Callable[..., None]], ...]:
    return (
        (scheduling_signals.job_transitioned, job_moved),
        (scheduling_signals.round_committed, round_done),
        (scheduling_signals.cluster_changed, cluster_changed),
        (scheduling_signals.node_changed, node_moved),
        (scheduling_signals.answers_found, answers_found),
        (workers_signals.log_grew, log_grew),
        (workers_signals.goodput_sampled, goodput_sampled),
        (workers_signals.image_progress, image_progress),
        (workers_signals.telemetry_seen, telemetry_seen),
    )


def _uid(receiver: Callable[..., None]) -> str:
    return f"portal.live.{receiver.__name__}"


def job_moved(
    *,
    job_id: int,
    virtual_cluster_id: int,
    virtual_cluster: str,
    before: str,
    after: str,
    **_: Any,
) -> None:
    """Publish a changed job: immediately on its own topic, paced on its queue and the overview."""
    publisher().send(
        job_group(job_id),
        f"job:{job_id}",
        {"id": job_id, "state": str(after), "before": str(before)},
    )
    publisher().send(overview_group(), "overview", {"changed": "jobs"}, paced=True)
    publisher().send(
        queue_group(virtual_cluster_id),
        f"queue:{virtual_cluster}",
        {"changed": "jobs"},
        paced=True,
    )


def round_done(*, number: int, changed: bool, new_waits: bool, **_: Any) -> None:
    """Publish the numbers of a round, and the overview if the round changed a job or a reason."""
    beat = round_beat(number)
    if beat is None:
        return
    publisher().send(rounds_group(), "rounds", beat)
    if changed or new_waits:
        publisher().send(overview_group(), "overview", {"changed": "round"}, paced=True)


def cluster_changed(*, cause: str, **_: Any) -> None:
    """Publish a change to the overview before the next round reads it."""
    publisher().send(overview_group(), "overview", {"changed": cause}, paced=True)


def answers_found(*, job_ids: Sequence[int], **_: Any) -> None:
    """Publish that new start estimates or remedies of waiting jobs exist."""
    for job_id in job_ids[:MOST_ANSWERS]:
        publisher().send(job_group(job_id), f"job:{job_id}", {"id": job_id, "why": True})
    publisher().send(overview_group(), "overview", {"changed": "why"}, paced=True)


def node_moved(*, node_id: int, **_: Any) -> None:
    """Publish a changed state or device of a node."""
    publisher().send(nodes_group(), "nodes", {"id": node_id}, paced=True)
    publisher().send(overview_group(), "overview", {"changed": "nodes"}, paced=True)


def log_grew(
    *,
    job_id: int,
    role: str,
    rank: int,
    attempt: int,
    offset: int,
    text: str,
    next_offset: int,
    end: bool,
    **_: Any,
) -> None:
    """Publish new output of a log without pacing."""
    publisher().send(
        log_group(job_id, role, rank),
        f"log:{job_id}:{role}:{rank}",
        {
            "attempt": attempt,
            "offset": offset,
            "text": text,
            "next_offset": next_offset,
            "end": end,
        },
    )


def goodput_sampled(*, job_id: int, **_: Any) -> None:
    """Publish a new point of a job's goodput curve."""
    publisher().send(
        job_group(job_id), f"job:{job_id}", {"id": job_id, "goodput": True}, paced=True
    )


def image_progress(*, job_id: int, text: str, **_: Any) -> None:
    """Publish the progress of the image of a starting job."""
    publisher().send(
        job_group(job_id), f"job:{job_id}", {"id": job_id, "detail": text}, paced=True
    )


def telemetry_seen(*, node_id: int, **_: Any) -> None:
    """Publish the reported utilisation of a node's devices."""
    publisher().send(nodes_group(), "nodes", {"id": node_id}, paced=True)
