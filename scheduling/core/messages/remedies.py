"""What the owner of a waiting job, or an admin, can do about its reason."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, fixed

REMEDIES: Final[Mapping[str, Template]] = {
    "release": fixed("Release it."),
    "submit-without-dependency": fixed("Stop it, and submit it again without that dependency."),
    "ask-higher-limit-or-fewer": fixed("Ask for a higher limit, or use fewer devices."),
    "ask-higher-limit": fixed("Ask for a higher limit."),
    "ask-higher-borrow-cap": fixed(
        "Ask a cluster admin for a higher cap on opportunistic devices."
    ),
    "ask-fewer-ports": fixed("Ask for fewer ports."),
    "raise-priority": fixed(
        "Raise its priority, or allow backfill in the virtual cluster's policy."
    ),
    "ask-later-deadline": fixed("Ask for a later deadline, or submit it without one."),
    "remove-image": fixed("Remove the image, or ask an admin for a node with Docker."),
    "ask-more-devices": fixed("Ask for more devices, or for fewer CPUs and less memory."),
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
    "ask-to-reset": fixed("Ask an admin to reset %(nodes)s when no job runs there."),
    "repair-node": fixed("Repair node %(node)s."),
    "submit-again": fixed("Submit it again: a new job avoids no node."),
    "ask-quota": fixed("Ask for a quota."),
    "ask-smaller-instances": fixed(
        "Ask for at most %(most)s an instance, and for more instances."
    ),
    "name-level": fixed("Name one of %(names)s."),
    "ask-at-most-or-spread": fixed("Ask for at most %(most)s, or let it spread."),
    "ask-at-most": fixed("Ask for at most %(most)s."),
    "ask-at-most-of-kinds": fixed("Ask for at most %(most)s of %(kinds)s."),
    "run-outside-pinned": fixed("Run it outside the pinned cell."),
    "run-opportunistically": fixed("Run it opportunistically."),
    "opportunistic-fits": fixed("Run it opportunistically: there is room now."),
    "opportunistic-fits-unpinned": fixed(
        "Run it opportunistically, outside the pinned cell: there is room now."
    ),
    "less-fits": fixed("Ask for %(less)s: that fits now."),
    "job-ends": fixed("One job in its way ends; it has %(size)s."),
    "jobs-end": fixed("%(ends)s jobs in its way end; they have %(size)s together."),
}
