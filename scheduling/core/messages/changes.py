"""Changes of a waiting job with which it would start now."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, counted, fixed

CHANGES: Final[Mapping[str, Template]] = {
    "starts-now": fixed("%(how)s it starts now."),
    "starts-now-on-node": fixed("%(how)s it starts now; an instance stays on one node."),
    "starts-now-released": fixed("%(gates)s, it starts now."),
    "gates-and": fixed("%(gates)s and %(how)s"),
    "released": fixed("released", "a job that was held"),
    "without-waiting": fixed("without waiting for other jobs"),
    "without-earliest-start": fixed("without its earliest start"),
    "as-opportunistic": fixed("as an opportunistic job, which may be preempted at any time,"),
    "as-opportunistic-unpinned": fixed(
        "as an opportunistic job outside pinned cells, which may be preempted at any time,"
    ),
    "outside-pinned": fixed("outside the pinned cell"),
    "in-cluster": fixed("in virtual cluster %(name)s"),
    "not-inside": fixed("not kept inside one %(levels)s,"),
    "with-devices": counted("with %(n)s device in %(role)s", "with %(n)s devices in %(role)s"),
    "with-devices-each": counted(
        "with %(n)s device each in %(role)s", "with %(n)s devices each in %(role)s"
    ),
    "with-instances": counted(
        "with %(n)s instance in %(role)s", "with %(n)s instances in %(role)s"
    ),
    "on-type": fixed("on devices of type %(type)s"),
    # The smallest job that could be asked for.
    "role-of-devices": counted(
        "%(count)s × %(n)s device in %(role)s", "%(count)s × %(n)s devices in %(role)s"
    ),
    "opportunistic-shape": fixed("opportunistic, %(shape)s"),
    "with-any-type": fixed("with %(shape)s of any type"),
    "with-any-type-and-share": fixed(
        "with %(shape)s of any type, with the processors and memory that come with them,"
    ),
    "how-in-cluster": fixed("%(how)s in virtual cluster %(name)s"),
}
