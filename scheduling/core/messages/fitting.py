"""Why the cluster can never run a job, and the remedies."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, fixed

FITTING: Final[Mapping[str, Template]] = {
    "no-virtual-cluster": fixed("Virtual cluster %(vc)s does not exist."),
    "use-one-of": fixed("Use one of %(names)s."),
    "no-node-of-type": fixed("No node has devices of type %(types)s."),
    "use-type-of-cluster-or-borrow": fixed(
        "Use a type of the virtual cluster, or class: opportunistic."
    ),
    "type-not-guaranteed": fixed(
        "Virtual cluster %(vc)s has no guaranteed devices of type %(types)s."
    ),
    "no-pinned-cell": fixed("Virtual cluster %(vc)s has no pinned cell %(pinned)s."),
    "use-guaranteed-or-no-pin": fixed("Use class: guaranteed, or omit the pinned cell."),
    "pin-needs-guaranteed": fixed("A pinned cell requires a guaranteed job."),
    "choices": fixed("Use one of: %(names)s."),
    "submit-without-pin": fixed("Submit it without a pinned cell."),
}
