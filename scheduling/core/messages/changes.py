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
    "not-inside": fixed("without the limit to one %(levels)s,"),
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
    "policy-reprocesses": fixed("Its policy runs it with %(value)s instead of %(now)s"),
    "reverts-processes": fixed(
        "It is slower with %(slow)s than with %(fast)s and returns to that"
    ),
    "sharing-unsupported": fixed("%(shared)s would share a device, which no node supports yet"),
    "policy-preempts": fixed("Its policy gives its devices to other jobs"),
    "reverts-size": fixed("It is slower on %(held)s than on %(alloc)s and returns to that size"),
    "policy-resizes": fixed("Its policy gives it %(alloc)s instead of %(held)s"),
    "no-shape": fixed("job %(id)s has no shape with %(alloc)s"),
    "victim-of-guarantee": fixed("A guaranteed job reclaims its virtual cluster's cells"),
    "victim-of-priority": fixed("A job of higher priority in the same virtual cluster"),
    "borrows-now": fixed(
        "Its virtual cluster's guarantee no longer covers it. It keeps running on borrowed "
        "devices until a guaranteed job needs them"
    ),
    "guaranteed-now": fixed("Its virtual cluster's guarantee covers it again"),
    "placed-by-round": fixed("Round %(number)s assigned %(devices)s on %(nodes)s to it"),
    "passes": counted("%(n)s pass", "%(n)s passes"),
    "batch-changed": fixed(
        "Its batch is now %(batch)s samples in %(parts)s per device instead of %(before)s: "
        "%(gain)s more goodput is expected."
    ),
    "processes-per-device": counted("%(n)s process per device", "%(n)s processes per device"),
    "devices-of-type": counted("%(n)s device of type %(type)s", "%(n)s devices of type %(type)s"),
}
