"""Why a job waits, is refused or can never start."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, counted, fixed

REASONS: Final[Mapping[str, Template]] = {
    # Parts of sentences.
    "devices": counted("%(n)s device", "%(n)s devices"),
    "instances": counted("%(n)s instance of %(devices)s", "%(n)s instances of %(devices)s"),
    "jobs": counted("job %(shown)s", "jobs %(shown)s"),
    "jobs-and-more": fixed("jobs %(shown)s and %(more)s more"),
    "nodes-and-more": fixed("%(names)s and %(more)s more"),
    "cells-of-level": fixed("%(count)s × %(level)s"),
    "no-cells": fixed("no cells there"),
    "type-in-chain": fixed("%(kind)s in %(chain)s"),
    "the-cluster": fixed("the cluster"),
    "the-virtual-cluster": fixed("virtual cluster %(name)s"),
    "the-pinned-cell": fixed("the pinned cell %(pinned)s"),
    # Closed gates.
    "held": fixed("It is on hold."),
    "turn-of-sweep": counted(
        "The sweep is at its limit: at most %(n)s job runs at a time.",
        "The sweep is at its limit: at most %(n)s jobs run at a time.",
    ),
    "after-failed": fixed("It depends on %(jobs)s, which did not succeed, so it never starts."),
    "after-jobs": fixed("It depends on %(jobs)s."),
    "not-before": fixed("Earliest start: %(not_before)s."),
    "backoff": fixed("Its last attempt failed; the next is due at %(backoff_until)s."),
    # Caps, ports, and jobs before it.
    "user-max": counted(
        "%(name)s may use at most %(cap)s device; this job needs %(wanted)s.",
        "%(name)s may use at most %(cap)s devices; this job needs %(wanted)s.",
        by="cap",
    ),
    "user-cap": counted(
        "%(name)s uses %(held)s of at most %(cap)s device; this job needs %(wanted)s more.",
        "%(name)s uses %(held)s of at most %(cap)s devices; this job needs %(wanted)s more.",
        by="cap",
    ),
    "borrow-cap": fixed(
        "%(name)s borrows %(borrowed)s devices and may borrow %(cap)s; this job needs %(wanted)s "
        "more."
    ),
    "ports-in-use": fixed(
        "Jobs ahead of it use the ports: it needs %(wanted)s, and %(free)s are free."
    ),
    "behind-head": fixed("Job %(head)s is ahead of it in %(name)s and does not fit yet."),
    "waits-for-victims": counted(
        "It starts when the job on its cells has saved its work and released them.",
        "It starts when the %(n)s jobs on its cells have saved their work and released them.",
    ),
    "waits-for-leaving": fixed(
        "It starts when the jobs on its cells have saved their work and released them."
    ),
    # What its policy has decided.
    "policy-gave-away": fixed("The policy has assigned its cells to other jobs in this round."),
    "policy-gives-nothing": fixed("The policy assigns no devices to it in this round."),
    "policy-refuses": fixed("Its virtual cluster's policy refuses it."),
    "policy-reserves": counted(
        "%(n)s device is reserved for it, starting in about %(minutes)s min.",
        "%(n)s devices are reserved for it, starting in about %(minutes)s min.",
    ),
    "policy-reserves-type": counted(
        "%(n)s device of type %(type)s is reserved for it, starting in about %(minutes)s min.",
        "%(n)s devices of type %(type)s are reserved for it, starting in about %(minutes)s min.",
    ),
    "deadline-infeasible": fixed(
        "Its deadline cannot be met in addition to the deadlines already promised."
    ),
    # Nodes that do not suit it.
    "no-container-engine": fixed("It needs an image, and no node has a container engine."),
    "cpu-or-memory": fixed(
        "A device comes with at most %(cpus)g CPUs and %(gigabytes).0f GB; an instance of this "
        "job needs more than the share of its devices."
    ),
    "below-isolation": counted(
        "Jobs of %(name)s run only on nodes of isolation level %(level)s or better, and %(n)s "
        "node has a lower level.",
        "Jobs of %(name)s run only on nodes of isolation level %(level)s or better, and %(n)s "
        "nodes have a lower level.",
    ),
    "nodes-dedicated": counted(
        "%(n)s node is dedicated to other tenants, and no other node has room.",
        "%(n)s nodes are dedicated to other tenants, and no other node has room.",
    ),
    "node-of-other-tenant": fixed(
        "The job cannot share a node without isolation: node %(node)s belongs to another tenant."
    ),
    "nodes-of-other-tenants": fixed(
        "The job cannot share a node without isolation: %(n)s nodes belong to other tenants."
    ),
    "nodes-needed-by-guarantees": fixed(
        "The job cannot share a node without isolation, and the guarantees of other tenants "
        "need the free ones."
    ),
    "node-unhealthy": fixed("It would fit if node %(names)s were healthy."),
    "nodes-unhealthy": fixed("It would fit if nodes %(names)s were healthy."),
    "node-excluded": fixed("It would fit if node %(names)s were not excluded for it."),
    "nodes-excluded": fixed("It would fit if nodes %(names)s were not excluded for it."),
    # What no amount of waiting changes.
    "no-quota": fixed("Virtual cluster %(vc)s has no cells of its own."),
    "instance-too-large": fixed("One instance needs %(wanted)s; a node has %(most)s."),
    "no-such-level": fixed("No chain in question has a level %(level)s."),
    "job-too-wide": fixed("The job needs %(wanted)s in one %(level)s; one has %(most)s."),
    "job-too-large": fixed("The job needs %(wanted)s; %(owner)s has %(most)s of one chain."),
    "job-too-large-for-pinned": fixed("The job needs %(wanted)s; %(owner)s has %(most)s in all."),
    "roles-too-large": fixed(
        "Its roles need %(wanted)s of %(kinds)s together; %(owner)s has %(most)s."
    ),
    "roles-need-healthy": fixed(
        "Its roles need %(wanted)s of %(kinds)s together; %(sound)s are healthy."
    ),
    # Devices that others use.
    "guarantee-apart": fixed(
        "Virtual cluster %(vc)s is guaranteed %(quota)s; %(free)s of their %(total)s are free, "
        "but not together as %(request)s on level %(level)s."
    ),
    "guarantee-in-use": fixed(
        "Virtual cluster %(vc)s is guaranteed %(quota)s; %(used)s of their %(total)s are in use, "
        "and it needs %(request)s."
    ),
    "idle-apart": counted(
        "%(n)s device of %(kind)s is idle, but not as %(request)s on level %(level)s.",
        "%(n)s devices of %(kind)s are idle, but not as %(request)s on level %(level)s.",
    ),
    "none-idle": fixed(
        "No device of %(kind)s is idle, and it needs %(request)s on level %(level)s."
    ),
}
