"""Binding of the ports and signals of ``scheduling`` to broker, tasks and live updates."""

from typing import Any

from portal.broker.connection import LocalKeys, RedisKeys, client, has_broker, tolerated
from portal.broker.requests import (
    BrokerEstimateRequests,
    BrokerRoundRequests,
    EstimateMessage,
    RoundMessage,
)
from portal.celery import ROUNDS_QUEUE
from portal.live import publishing
from scheduling import ports, signals


def connect() -> None:
    """Bind the ports of ``scheduling`` and connect its signals; idempotent."""
    keys = RedisKeys(client) if has_broker() else LocalKeys()
    ports.bind(
        ports.RequestPorts(
            rounds=BrokerRoundRequests(keys, _send_round),
            estimates=BrokerEstimateRequests(keys, _send_estimates),
            what_ifs=_WhatIfRequests(),
        )
    )
    signals.round_committed.connect(request_follow_ups, dispatch_uid="portal.request_follow_ups")
    if has_broker():
        publishing.connect()


def request_follow_ups(
    *, number: int, changed: bool, stored: bool, new_waits: bool, **_: Any
) -> None:
    """Request start estimates after a round, and shadow decisions if the round is stored."""
    requests = ports.bound().estimates
    requests.request(changed=changed)
    if new_waits:
        requests.request_new_waits()
    if stored:
        _send_shadows(number)


# The functions below import tasks when called, since tasks need the loaded applications.


class _WhatIfRequests:
    """Implements `scheduling.ports.WhatIfRequests`."""

    def request(self, pk: int) -> None:
        if not has_broker():
            return
        from scheduling.tasks import answer_what_if  # noqa: PLC0415

        with tolerated(f"what-if {pk} was not queued; it is retried on the next poll"):
            client().ping()
            answer_what_if.apply_async(kwargs={"pk": pk}, retry=False)


def _send_shadows(number: int) -> None:
    if not has_broker():
        return
    from scheduling.tasks import decide_shadows  # noqa: PLC0415
    from scheduling.what_if.queries import any_shadows  # noqa: PLC0415

    if not any_shadows():
        return
    with tolerated("no shadow policy decides this round"):
        client().ping()
        decide_shadows.apply_async(kwargs={"number": number}, retry=False)


def _send_round(message: RoundMessage) -> None:
    if not has_broker():
        return
    from scheduling.tasks import run_round  # noqa: PLC0415

    run_round.apply_async(
        kwargs={"cause": message.cause, "after": message.after},
        queue=ROUNDS_QUEUE,
        retry=False,
        **({"eta": message.at} if message.at else {"countdown": message.countdown}),
    )


def _send_estimates(message: EstimateMessage) -> None:
    if not has_broker():
        return
    from scheduling.tasks import estimate_new_waits, estimate_starts  # noqa: PLC0415

    task = estimate_new_waits if message.new_waits else estimate_starts
    task.apply_async(retry=False, countdown=message.countdown, expires=message.expires)
