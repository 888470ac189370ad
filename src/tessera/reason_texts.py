"""English templates of reasons (``tessera.reasons``)."""

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
    # Caps, ports, and earlier jobs of the queue.
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
    "no-parallel-plan": fixed(
        "It has no parallel plan: by its profile, no grid fits %(count)s or any other size."
    ),
    "no-parallel-plan-at-size": fixed(
        "It has no parallel plan for %(count)s: by its profile, it can run on %(sizes)s."
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
    # Decisions of its policy.
    "policy-gave-away": fixed("The policy has assigned its cells to other jobs in this round."),
    "waits-for-partner": fixed(
        "Its policy runs it on the device of job %(holder)s, once that device can be shared."
    ),
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
    # Unsuitable nodes.
    "no-container-engine": fixed("It needs an image, and no node has a container engine."),
    "driver-too-low": fixed(
        "It requires GPU driver %(least)s or newer; the newest driver of a node is %(most)s."
    ),
    "cuda-too-low": fixed(
        "It requires CUDA %(least)s or newer; the drivers of the nodes support at most CUDA "
        "%(most)s."
    ),
    "device-memory-too-low": fixed(
        "It requires devices with %(least)g GiB of memory; the nodes have at most %(most)g GiB in "
        "each device."
    ),
    "no-gpu-facts": fixed("It has requirements on GPUs (%(name)s), and no node reports a value."),
    "no-rdma": fixed(
        "Its container requests InfiniBand devices, and no node with enough free devices has them."
    ),
    "no-nvlink": fixed(
        "No node with enough free devices has an NVLink domain of the requested device types."
    ),
    "needs-own-node": fixed(
        "Its container uses the IPC namespace of the node, which needs a node that is dedicated "
        "to its tenant alone."
    ),
    "cpu-or-memory": fixed(
        "Each device includes at most %(cpus)g CPUs and %(gigabytes).0f GB of memory; an "
        "instance of this job needs more than its devices include."
    ),
    "waiting-for-cpus": counted(
        "It needs %(n)s instance of up to %(cpus)g CPUs and %(memory)g GiB that belong to no "
        "device; of the suitable nodes, the best has %(free)g CPUs and %(left)g GiB free.",
        "It needs %(n)s instances of up to %(cpus)g CPUs and %(memory)g GiB that belong to no "
        "device; of the suitable nodes, the best has %(free)g CPUs and %(left)g GiB free.",
    ),
    "no-node-with-cpus": counted(
        "It needs %(n)s instance of up to %(cpus)g CPUs and %(memory)g GiB that belong to no "
        "device; of the suitable nodes, the largest has %(most)g CPUs and %(there)g GiB.",
        "It needs %(n)s instances of up to %(cpus)g CPUs and %(memory)g GiB that belong to no "
        "device; of the suitable nodes, the largest has %(most)g CPUs and %(there)g GiB.",
    ),
    "no-cpu-pool": fixed(
        "It has no devices, and all CPUs and memory of the suitable nodes belong to devices."
    ),
    "no-usable-cpu-pool": fixed(
        "The nodes with CPUs that belong to no device are unhealthy, cordoned or draining."
    ),
    "behind-oldest-cpu-job": fixed(
        "Nodes are reserved for a job without devices that has waited for more than "
        "%(minutes)s min."
    ),
    "after-many-cpu-trials": fixed(
        "This round tried %(n)s other jobs without devices of this tenant, the most in one round."
    ),
    "after-many-cpu-starts": fixed(
        "This round started %(n)s jobs without devices, the maximum of one round."
    ),
    "below-isolation": counted(
        "Jobs of %(name)s run only on nodes of isolation level %(level)s or better, and %(n)s "
        "node has a lower level.",
        "Jobs of %(name)s run only on nodes of isolation level %(level)s or better, and %(n)s "
        "nodes have a lower level.",
    ),
    "nodes-dedicated": counted(
        "%(n)s node is dedicated to other tenants, and no other node has enough free devices.",
        "%(n)s nodes are dedicated to other tenants, and no other node has enough free devices.",
    ),
    "storage-not-allowed": fixed(
        "Storage %(name)s does not exist any more, or jobs of %(vc)s may not use it any more."
    ),
    "storages-missing": counted(
        "%(n)s node does not have all storages of the job (%(names)s), and no other node has "
        "enough free devices.",
        "%(n)s nodes do not have all storages of the job (%(names)s), and no other node "
        "has enough free devices.",
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
    # Final reasons: waiting does not help.
    "no-quota": fixed("Virtual cluster %(vc)s has no cells."),
    "instance-too-large": fixed("One instance needs %(wanted)s; a node has at most %(most)s."),
    "no-such-level": fixed("No suitable chain has the level %(level)s."),
    "job-too-wide": fixed("The job needs %(wanted)s in one %(level)s; the largest has %(most)s."),
    "job-too-large": fixed(
        "The job needs %(wanted)s; %(owner)s has at most %(most)s of one chain."
    ),
    "job-too-large-for-pinned": fixed(
        "The job needs %(wanted)s; %(owner)s has %(most)s in total."
    ),
    "roles-too-large": fixed(
        "Its roles need %(wanted)s of %(kinds)s together; %(owner)s has %(most)s."
    ),
    "roles-need-healthy": fixed(
        "Its roles need %(wanted)s of %(kinds)s together; %(sound)s are healthy."
    ),
    # Devices in use by others.
    "guarantee-apart": fixed(
        "Virtual cluster %(vc)s is guaranteed %(quota)s; %(free)s of its %(total)s are free, "
        "but not together as %(request)s on level %(level)s."
    ),
    "guarantee-in-use": fixed(
        "Virtual cluster %(vc)s is guaranteed %(quota)s; %(used)s of its %(total)s are in use, "
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
