"""English templates of the remedies of reasons (``tessera.reasons``)."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, counted, fixed

REMEDIES: Final[Mapping[str, Template]] = {
    "release": fixed("Release it."),
    "submit-without-dependency": fixed("Stop it, and submit it again without that dependency."),
    "ask-higher-limit-or-fewer": fixed("Ask for a higher limit, or use fewer devices."),
    "ask-higher-limit": fixed("Ask for a higher limit."),
    "ask-higher-borrow-cap": fixed(
        "Ask a cluster admin for a higher cap on opportunistic devices."
    ),
    "give-parallel-stages": fixed(
        "Declare a plan in `parallel.stages`, or more micro-batches, and look at the grids."
    ),
    "use-planned-size": fixed("Use %(sizes)s devices, or declare a plan in `parallel.stages`."),
    "ask-fewer-ports": fixed("Request fewer ports."),
    "no-host-for-guest": fixed(
        "No device is idle, and no device in use admits this job as a guest: %(causes)s."
    ),
    "no-host-at-all": fixed("no device admits guests"),
    "guest-refused-type": counted("%(n)s is of another type", "%(n)s are of other types"),
    "guest-refused-mode": counted(
        "%(n)s has no sharing mode for it", "%(n)s have no sharing mode for it"
    ),
    "guest-refused-consent": counted(
        "the holder of %(n)s does not allow it", "the holders of %(n)s do not allow it"
    ),
    "guest-refused-tenant": counted(
        "%(n)s must not be shared with another tenant",
        "%(n)s must not be shared with another tenant",
    ),
    "guest-refused-excluded": counted(
        "%(n)s has excluded it after an earlier try",
        "%(n)s have excluded it after an earlier try",
    ),
    "guest-refused-full": counted("%(n)s has enough guests", "%(n)s have enough guests"),
    "guest-refused-unsteady": counted(
        "the holder of %(n)s has not reported 50 steps in 60 s yet",
        "the holders of %(n)s have not reported 50 steps in 60 s yet",
    ),
    "guest-refused-account": counted(
        "the holder of %(n)s cannot be slowed down further",
        "the holders of %(n)s cannot be slowed down further",
    ),
    "guest-refused-memory": counted(
        "%(n)s has too little free memory", "%(n)s have too little free memory"
    ),
    "guest-refused-node": counted(
        "%(n)s is on a node that it may not use", "%(n)s are on nodes that it may not use"
    ),
    "guest-needs-less": fixed("Lower sharing.memory, if the job can work with less."),
    "raise-priority": fixed(
        "Raise its priority, or allow backfill in the virtual cluster's policy."
    ),
    "ask-later-deadline": fixed("Request a later deadline, or submit it without one."),
    "remove-image": fixed("Remove the image, or ask an admin for a node with Docker."),
    "lower-requirement": fixed("Lower %(name)s, or ask an admin for other nodes or a new driver."),
    "omit-nvlink": fixed("Use within: node, or ask an admin for a node with NVLink."),
    "omit-rdma": fixed("Omit rdma, or ask an admin for a node with InfiniBand."),
    "use-private-ipc": fixed(
        "Use ipc: private, or ask an admin to dedicate a node to this tenant alone."
    ),
    "ask-more-devices": fixed("Request more devices, or fewer CPUs and less memory."),
    "request-fewer-cpus": fixed(
        "Request fewer CPUs or less memory, or give the instance a device with its share."
    ),
    "ask-for-cpus": fixed(
        "Ask an admin to lower the share of each device of a node (tessera node device-share NODE "
        "--cpus N --memory SIZE), or to add a node without devices."
    ),
    "ask-to-return-nodes": fixed("Ask an admin to return one of these nodes to service."),
    "ask-to-raise-isolation": fixed(
        "Ask an admin to raise the isolation level of the nodes (docs/isolation.md)."
    ),
    "ask-to-enable-namespaces": fixed(
        "Ask an admin to enable user namespaces on the nodes (docs/isolation.md)."
    ),
    "give-images": fixed("Give each role an image: jobs with an image run at level container."),
    "give-images-and-engine": fixed(
        "Give each role an image, and run it on a node with a container engine."
    ),
    "ask-to-dedicate": fixed(
        "Wait for another node, or ask an admin to dedicate a node to this tenant."
    ),
    "ask-for-storage": fixed(
        "Ask an admin to make it available on more nodes (tessera storage list shows where)."
    ),
    "omit-storage": fixed("Remove it from storage, or ask an admin for access."),
    "ask-to-reset": fixed("Ask an admin to reset %(nodes)s when no job runs there."),
    "repair-node": fixed("Repair node %(node)s."),
    "submit-again": fixed("Submit it again: a new job avoids no node."),
    "ask-quota": fixed("Ask for a quota."),
    "ask-smaller-instances": fixed("Request at most %(most)s per instance, and more instances."),
    "name-level": fixed("Use one of %(names)s."),
    "ask-at-most-or-spread": fixed("Request at most %(most)s, or allow it to spread."),
    "ask-at-most": fixed("Request at most %(most)s."),
    "ask-at-most-of-kinds": fixed("Request at most %(most)s of %(kinds)s."),
    "run-outside-pinned": fixed("Run it outside the pinned cell."),
    "run-opportunistically": fixed("Run it opportunistically."),
    "opportunistic-fits": fixed("Run it opportunistically: enough devices are free now."),
    "opportunistic-fits-unpinned": fixed(
        "Run it opportunistically, outside the pinned cell: enough devices are free now."
    ),
    "less-fits": fixed("Request %(less)s: that fits now."),
    "job-ends": fixed("One blocking job ends; it has %(size)s."),
    "jobs-end": fixed("%(ends)s blocking jobs end; they have %(size)s together."),
}
