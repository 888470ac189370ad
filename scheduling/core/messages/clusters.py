"""Messages for refused changes of nodes, virtual clusters and cluster settings; their remedies."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, counted, fixed

CLUSTERS: Final[Mapping[str, Template]] = {
    "cluster-exists": fixed("A virtual cluster named %(name)s already exists."),
    "removed-by-edit": fixed("Another edit removes it."),
    "moves-of-jobs": fixed("moves of jobs"),
    "no-such-moves": fixed("The newest forecast has no moves for job %(job)s."),
    "moves-too-old": fixed("The proposal is older than 20 minutes. Wait for the next one."),
    "moves-changed": fixed("Job %(job)s has changed its state since the proposal was made."),
    "moved-for-job": fixed("It moves, so that job %(job)s can start."),
    "moves-nothing": fixed("The edit moves no cells."),
    "give-one-or-more": fixed("Give 1 or more."),
    "move-fewer": fixed("Move at most %(has)s."),
    "rename-or-unpin": fixed("Use another name, or unpin that cell first."),
    "remove-once": fixed("Remove it only once."),
    "idle-stopped": fixed(
        "Its devices were idle for %(idle)s minutes; the idle policy allows %(allowed)s. A "
        "warning was sent."
    ),
    "idle-stopped-some": fixed(
        "%(some)s of its %(all)s devices were idle for %(idle)s minutes; the idle policy allows "
        "%(allowed)s. A warning was sent."
    ),
    "give-percentage": fixed("Give a percentage above 0."),
    "give-warn-after": fixed("Give 5 minutes to 7 days, in seconds."),
    "give-stop-after": fixed("Give at least 5 minutes more than warn_after, in seconds, or null."),
    "give-classes": fixed("Give names of priority classes."),
    "use-boolean": fixed("Use true or false."),
    "not-field-of-storage": fixed("This is not a valid value for a storage."),
    "storage-not-found": fixed("Storage not found, or you may not use it."),
    "storage-exists": fixed("A storage named %(name)s already exists."),
    "jobs-use-storage": counted(
        "%(n)s queued or running job uses storage %(name)s.",
        "%(n)s queued or running jobs use storage %(name)s.",
    ),
    "stop-jobs-of-storage": fixed("Wait until the jobs end, or stop them."),
    "name-known-one": fixed("Use the name of an existing one."),
    "omit-mount": fixed("Leave the mount point of a storage for checkpoints empty."),
    "use-mounted-path": fixed(
        "Use the directory at which the nodes mount it: checkpoints need it on the node."
    ),
    "give-mount": fixed("Give a default mount point, such as /data."),
    "default-needs-access": fixed("Give this virtual cluster or its tenant access first."),
    "source-conflicts": fixed("The source overlaps the source of storage %(name)s."),
    "use-source-apart": fixed(
        "Use a separate directory: a job could replace the inner directory by a link."
    ),
    "second-checkpoint-store": fixed(
        "Storage %(name)s is already the default for checkpoints of one of these virtual clusters."
    ),
    "remove-other-default": fixed("Remove the virtual cluster from that storage first."),
    "not-field-of-idle-policy": fixed("This is not a valid %(name)s of an idle policy."),
    "cluster-archived": fixed("A virtual cluster named %(name)s was archived."),
    "name-tenant": fixed("Give the name of an existing tenant."),
    "not-kind-of-name": fixed("This is not a valid kind of name."),
    "use-foreign-name": fixed("Use 1 to 100 letters, digits and . _ / @ -."),
    "not-foreign-name": fixed("This is not a valid name of a partition, account or fleet."),
    "rule-without-meaning": fixed("The rule does not map the name to anything."),
    "name-cluster": fixed("Use an existing virtual cluster."),
    "name-class": fixed("Use an existing priority class."),
    "import-rule-exists": fixed("A rule for %(kind)s %(name)s already exists."),
    "none-of-this-name": fixed("Name not found."),
    "delete-that-first": fixed("Delete that rule first."),
    "import-lacks-devices": fixed(
        "The imported topology of %(node)s does not have its devices %(extra)s."
    ),
    "cells-changed-in-use": fixed(
        "Its cells have changed. The old shape stays in use while jobs hold devices."
    ),
    "cells-changed": fixed("Its cells have changed. The old shape stays in use: %(fault)s."),
    "devices-wait-for-leaf": fixed(
        "New GPUs of %(node)s wait until jobs release the missing GPUs in their place: %(uuids)s."
    ),
    "devices-moved-in-use": fixed(
        "GPUs of %(node)s are in other sockets than before. Drain the node to move their cells."
    ),
    "not-retried": fixed("Not retried: %(name)s."),
    "log-rule-exists": fixed("A rule named %(name)s already exists."),
    "too-many-rules": fixed("The limit of %(most)s rules is reached."),
    "not-field-of-log-rule": fixed("This is not a valid %(name)s of a log rule."),
    "delete-one-first": fixed("Delete a rule first."),
    "no-such-member": fixed("Member not found."),
    "not-cluster-of-tenant": fixed("This is not a virtual cluster of the tenant."),
    "use-any-of": fixed("Use any of: %(names)s."),
    "node-answers": fixed("%(name)s responds, so it is not dead."),
    "not-registry": fixed("is not the host of a registry."),
    "write-registry": fixed(
        "Write the host in lower case, such as registry.example.org:5000; docker.io for Docker "
        "Hub."
    ),
    "not-registry-user": fixed("is not a valid user name."),
    "write-registry-user": fixed("Write 1 to 255 printable characters without spaces and colons."),
    "not-registry-password": fixed("is not a valid password or token."),
    "write-registry-password": fixed("Write one line of 1 to %(most)s printable characters."),
    "most-registry-logins": fixed("The tenant has %(most)s registry logins, the maximum."),
    "delete-a-login": fixed("Delete a login that jobs no longer use."),
    "no-registry-login": fixed("Registry login not found."),
    "not-duration-of-mark": fixed("is not a valid duration."),
    "write-duration-of-mark": fixed("Write more than 0 and at most %(most)s hours, or null."),
    "only-driver-hangs": fixed(
        "%(name)s responds, and only its GPU driver hangs: its jobs may still be running."
    ),
    "drain-and-restart": fixed(
        "Drain it. If its jobs do not end, switch it off or restart it; then it stops "
        "responding, or its jobs are lost."
    ),
    "no-such-device": fixed("%(name)s has no device %(index)s."),
    "drain-instead": fixed("Drain it instead; its jobs save their work and are requeued."),
    "declared-dead": fixed("%(name)s was declared dead"),
    "drain-of-node": fixed("the drain of %(node)s"),
    "drain-or-declare-dead": fixed("Drain it first. If it is permanently lost, declare it dead."),
    "not-field-of-node": fixed("This is not a valid %(field)s of a node."),
    "use-host": fixed("Use a host name or an IP address."),
    "use-port": fixed("Use a number from 1 to 65535."),
    "give-host-key": fixed("Give the public key line that the node shows."),
    "use-interface": fixed("Use the name of an interface of the node, such as ib0, or omit it."),
    "not-network-setting": fixed("This is not a valid network setting."),
    "other-fingerprint": fixed("The node's key has the fingerprint %(fingerprint)s."),
    "confirm-fingerprint": fixed(
        "Compare it with the fingerprint on the node. If both are equal, confirm it."
    ),
    "address-in-use": fixed("%(node)s has the address %(host)s:%(port)s."),
    "node-exists": fixed("A node named %(name)s already exists."),
    "use-other-address": fixed(
        "A machine can be registered only once. Use another address, or remove that node."
    ),
    "use-another-name": fixed("Use another name."),
    "default-class-needed": fixed("%(name)s is the default class, and a default is required."),
    "default-raced": fixed("Another default was set at the same time."),
    "choose-default-first": fixed("Set another class as the default first."),
    "class-exists": fixed("A priority class named %(name)s already exists."),
    "retry": fixed("Try again."),
    "not-field-of-class": fixed("This is not a valid %(field)s of a priority class."),
    "guarantee-less-or-whole-nodes": fixed(
        "Guarantee fewer or smaller cells there, whole nodes where nodes do not isolate jobs, "
        "or add nodes."
    ),
    "not-reconfiguration": fixed("This is not a valid reconfiguration."),
    "not-allowed-here": fixed("This is not allowed here."),
    "guarantee-whole-nodes": fixed(
        "Guarantee whole nodes to each tenant there, reset the node, or raise its isolation level."
    ),
    "guarantees-do-not-fit": fixed("The guarantees do not fit the cluster"),
    "devices-in-use": fixed("Jobs hold devices that would be removed"),
    "guarantee-less": fixed("Guarantee fewer or smaller cells there, or add nodes."),
    "drain-or-stop-first": fixed("Drain the nodes first, or stop the jobs."),
    "not-cluster-name": fixed("This is not a valid name of a virtual cluster."),
    "not-consent": fixed("This is not a valid consent to guests."),
    "use-cluster-name": fixed(
        "Use 1 to 63 characters of A-Z a-z 0-9 . _ -; begin and end with a letter or digit."
    ),
    "not-shadow-policies": fixed("This is not a list of shadow policies."),
    "cluster-existed": fixed("A virtual cluster named %(name)s exists or existed."),
    "archived": fixed("%(name)s is archived."),
    "no-such-tenant-archived": fixed("Tenant not found, or archived."),
    "create-under-another-name": fixed("Create a virtual cluster with another name."),
    "give-or-create-tenant": fixed("Use the name of an existing tenant, or create one first."),
    "stop-or-let-end": fixed("Stop them first, or wait until they end."),
    "idle-warning": fixed(
        "Its devices were busy for less than %(below)s %% of the time for %(minutes)s minutes."
    ),
    "idle-warning-some": fixed(
        "%(some)s of its %(all)s devices were busy for less than %(below)s %% of the time for "
        "%(minutes)s minutes."
    ),
    "use-jump-host": fixed("Use USER@HOST or USER@HOST:PORT of an SSH server."),
    "give-idle-scope": fixed("Write all or any."),
    "idle-warning-with-stop": fixed(
        "%(idle)s It will be stopped at %(time)s UTC if they stay idle."
    ),
    "rule-too-slow": fixed(
        "Rule %(rule)s is not applied to the output of %(member)s on %(node)s from byte "
        "%(offset)s on: its pattern takes too long there. Simplify the pattern."
    ),
    "node-without-devices": fixed("no devices; only jobs without devices run here"),
    "jobs-use-share": counted(
        "%(n)s job depends on the current share of devices of %(node)s.",
        "%(n)s jobs depend on the current share of devices of %(node)s.",
    ),
    "write-share": fixed(
        "Write a number from %(least)g to %(most)g, or null for an equal part of the node."
    ),
    "jobs-on-node": counted(
        "%(n)s job is still on %(node)s.", "%(n)s jobs are still on %(node)s."
    ),
    "no-such-class": fixed("Priority class not found."),
    "busy-again": fixed("Its devices are busy again."),
    "not-isolation-level": fixed("This is not a valid isolation level."),
    "name-too-long": fixed("This name has more than %(longest)s characters."),
    "use-shorter-name": fixed("Use a shorter one."),
    "no-such-cells": fixed("The physical cluster does not have these cells."),
    "name-has-history": fixed("Use another name; its history belongs to the old one."),
    "not-possible-node-name": fixed("A node cannot be named %(name)s."),
    "use-node-name-characters": fixed("Use up to %(most)s printable characters without '~'."),
    "use-cluster-name-characters": fixed("Use 1 to 63 of A-Z a-z 0-9 . _ -."),
    "belongs-to-tenant": fixed("The virtual cluster belongs to tenant %(tenant)s."),
    "only-clusters-of-document": fixed("Use only virtual clusters of the document."),
    "not-importable": fixed("This cannot be imported."),
    "neither-part": fixed("The document has neither %(one)s nor %(other)s."),
    "send-hived": fixed("Send a HiveD configuration, or its spec part."),
    "node-without-tenancy": fixed("%(name)s is not assigned to a tenant."),
    "drain-then-reset": fixed("Drain it first, then reset it."),
    "use-node-name": fixed(
        "Use 1 to 63 of A-Z a-z 0-9 . _ -, beginning and ending with a letter or digit."
    ),
    "use-node-account": fixed("Use the name of an account on the node, as in user@host."),
    "use-network-setting": fixed("Use %(names)s, or omit it to use the setting of the node."),
    "not-list-of-tenants": fixed("This is not a list of tenants."),
    "give-tenants": fixed("Give a list of at most %(most)s names; an empty one means all."),
    "use-tenant-short-name": fixed("Use the short name of a tenant."),
    "not-list-of-paths": fixed("This is not a list of paths."),
    "give-paths": fixed("Give a list of at most %(most)s objects with a path."),
    "not-visible-path": fixed("This is not a visible path."),
    "use-path-keys": fixed("Use the keys path, writable, checkpoints and tenants."),
    "path-not-for-jobs": fixed("Jobs cannot be given this path."),
    "path-problem": fixed("The path %(problem)s."),
    "use-class-name": fixed("Use 1 to 40 of a-z 0-9 _ -."),
    "use-class-priority": fixed("Use %(least)s to %(most)s."),
    "give-edits": fixed("Give 1 to %(most)s edits."),
    "give-cells": fixed("Give a list of {chain, level, count}."),
    "give-cell-keys": fixed("Give exactly the keys chain, level and count."),
    "give-level-once": fixed("Give each level of a chain once."),
    "give-pinned": fixed("Give a list of {name, address}."),
    "give-pinned-keys": fixed("Give exactly the keys name and address."),
    "give-pinned-name": fixed("Give a unique name of A-Z a-z 0-9 . _ -."),
    "give-whole-cell": fixed("Give the address of a whole cell; each address once."),
    "give-policy-parameters": fixed("Give a mapping of parameters."),
    "give-count": fixed("Give a whole number of at least 0."),
    "give-one-of": fixed("Give one of %(names)s."),
    "give-one-of-existing": fixed("Give one of: %(names)s."),
    "none-yet-add-node": fixed("none yet: add a node"),
    "see-policy-parameters": fixed("See the parameters of %(policy)s in docs/policies.md."),
    "use-storage-name": fixed(
        "Use 1 to 40 of a-z 0-9 -, beginning and ending with a letter or digit."
    ),
    "source-problem": fixed("The source %(problem)s."),
    "mount-problem": fixed("The mount point %(problem)s."),
    "give-names": fixed("Give a list of at most %(most)s names."),
    "guarantee-fewer-cells": fixed(
        "Guarantee fewer cells to this virtual cluster, choose a lower level or other nodes, or "
        "raise the isolation level of nodes."
    ),
    "give-shadows": fixed("Give at most %(most)s of {policy, policy_args}."),
    "not-pinned-cell": fixed("This is not a pinned cell of %(name)s."),
    "two-owners-of-cell": fixed("%(one)s and %(other)s would both own this cell."),
    "unpin-from-one": fixed("Unpin it from one of them in the same reconfiguration."),
    "use-existing-tenant": fixed("Use an existing tenant."),
    "specify-rule-meaning": fixed("Specify virtual_cluster, tenant, priority or opportunistic."),
    "none-without-cells": fixed("none: it has no cells"),
    "none-without-pinned-cells": fixed("none: it has no pinned cells"),
    "none-yet": fixed("none yet"),
    "none-ask-lead": fixed("none; ask a lead to add you to a tenant"),
    "jobs-hold-removed": counted(
        "%(n)s job holds %(devices)s of the devices that would be removed (%(shown)s).",
        "%(n)s jobs hold %(devices)s of the devices that would be removed (%(shown)s).",
    ),
    "jobs-in-cluster": counted(
        "%(n)s job waits or runs in %(name)s.", "%(n)s jobs wait or run in %(name)s."
    ),
}


CONDITIONS: Final[Mapping[str, Template]] = {
    "condition-lost": fixed("its driver has lost the GPU"),
    "condition-reset-required": fixed("the GPU requires a reset"),
    "condition-driver-hung": fixed("the GPU driver does not respond"),
    "condition-ecc-uncorrectable": fixed("uncorrectable memory errors"),
    "condition-row-remap-pending": fixed("memory rows are remapped at the next reset"),
    "condition-row-remap-failed": fixed("a memory row could not be remapped"),
    "condition-retired-pages-pending": fixed("memory pages are retired at the next reset"),
    "condition-hardware-slowdown": fixed("slowed down by the hardware"),
    "condition-thermal-slowdown": fixed("slowed down by its temperature"),
    "condition-power-brake": fixed("slowed down by the power supply"),
    "condition-nvlink-errors": fixed("NVLink errors"),
    "condition-fabric-not-ready": fixed("not registered with the fabric manager"),
    "condition-compute-mode": fixed("its compute mode limits processes"),
    "condition-foreign-process": fixed("a process that belongs to no job uses the GPU"),
    "condition-xid-hardware": fixed("hardware error (Xid)"),
    "condition-xid-memory": fixed("memory error (Xid)"),
    "condition-xid-nvlink": fixed("NVLink error (Xid)"),
    "condition-xid-driver": fixed("driver error (Xid)"),
    "condition-xid-application": fixed("error of an application (Xid)"),
    "condition-device-warning": fixed("its driver reports a warning"),
    "condition-device-alarm": fixed("its driver reports an alarm"),
    "canary-in-service": fixed("The device is in service. Quarantine it first."),
    "canary-in-use": fixed("A job uses the device. Run the canary job when it has ended."),
    "canary-missing": fixed("The last probe of the node did not find the device."),
    "canary-account-of-person": fixed(
        "A person signs in as %(name)s, the name of the account for canary jobs. Rename that user."
    ),
    "canary-node-not-ready": fixed("%(name)s is not ready."),
    "canary-not-testable": fixed(
        "Canary jobs test NVIDIA GPUs of nodes with isolation for plain jobs, or with containers"
        " if the rules name an image."
    ),
    "not-canary-setting": fixed("This is not a valid setting of canary jobs."),
    "canary-settings": fixed(
        "Use enabled (true or false), image, command, and seconds from %(least)s to %(most)s."
    ),
    "device-awaits-canary": fixed("waits for its canary job"),
    "device-failed-canary": fixed("its canary job failed"),
    "not-condition": fixed("This is not a valid condition of a GPU."),
    "not-condition-action": fixed("This is not a valid action for a condition."),
}
