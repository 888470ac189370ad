"""What a reconfiguration does, as the API shows it."""

from collections.abc import Iterable
from typing import TypedDict

from scheduling.selectors.reconfiguration import AffectedJob
from scheduling.services.reconfiguration import Reconfigured


class AffectedJobOut(TypedDict):
    """A job that a change is about; name and user are empty for jobs you may not see."""

    id: int
    name: str
    user: str
    virtual_cluster: str
    tenant: str
    devices: int


class PromiseOut(TypedDict):
    """Cells of one level before and after."""

    virtual_cluster: str
    chain: str
    level: str
    before: int
    after: int


class PinChangeOut(TypedDict):
    """The address of a pinned cell before and after; empty for none."""

    virtual_cluster: str
    name: str
    before: str
    after: str


class ReconfigurationOut(TypedDict):
    """What a reconfiguration has done, or would do; nobody is evicted by it.

    `version` is that of the topology: as read for a dry run, else the new one. Jobs in
    `become_opportunistic` run on, and borrow their devices from the next round on.
    """

    dry_run: bool
    version: int
    fits: bool
    witnesses: list[str]
    become_opportunistic: list[AffectedJobOut]
    guaranteed_again: list[AffectedJobOut]
    no_longer_fit: list[AffectedJobOut]
    cells: list[PromiseOut]
    pinned: list[PinChangeOut]
    nodes_added: list[str]
    nodes_removed: list[str]


def reconfiguration_out(done: Reconfigured) -> ReconfigurationOut:
    """What a reconfiguration has done, or would do."""
    effect, change = done.effect, done.effect.change
    return {
        "dry_run": done.dry_run,
        "version": done.version,
        "fits": change.fits,
        "witnesses": list(change.witnesses),
        "become_opportunistic": _jobs_out(effect.loses),
        "guaranteed_again": _jobs_out(effect.regains),
        "no_longer_fit": _jobs_out(effect.no_longer_fit),
        "cells": [
            {
                "virtual_cluster": promise.vc,
                "chain": promise.chain,
                "level": promise.level,
                "before": promise.before,
                "after": promise.after,
            }
            for promise in change.promises
        ],
        "pinned": [
            {"virtual_cluster": pin.vc, "name": pin.name, "before": pin.before, "after": pin.after}
            for pin in change.pins
        ],
        "nodes_added": list(change.nodes_added),
        "nodes_removed": list(change.nodes_removed),
    }


def _jobs_out(jobs: Iterable[AffectedJob]) -> list[AffectedJobOut]:
    return [
        {
            "id": job.job_id,
            "name": job.name,
            "user": job.user,
            "virtual_cluster": job.virtual_cluster,
            "tenant": job.tenant,
            "devices": job.devices,
        }
        for job in jobs
    ]
