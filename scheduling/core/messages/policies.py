"""Why a policy of this project lets a job wait."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, fixed

POLICIES: Final[Mapping[str, Template]] = {
    "others-first": fixed("The policy places other jobs first, and too few devices remain."),
    "nothing-left-or-lent": fixed("No free or lent devices remain."),
    "account-is-full": fixed("Its user or tenant is at the limit of devices."),
    "kept-for-longest": fixed(
        "The free devices are reserved for job %(id)s, which has waited longest."
    ),
    "reservation-now": fixed("It has a reservation now."),
    "reservation-in": fixed("It has a reservation in %(minutes)s min."),
    "would-delay": fixed("Starting it now would delay jobs ahead of it."),
    "other-slice": fixed("It runs in another time slice."),
    "no-type-has-enough": fixed("No device type has enough free devices for its minimum size."),
    "share-not-behind": fixed(
        "It starts when its received share of time falls behind its target share."
    ),
    "others-gain-more": fixed(
        "The policy gives the devices to jobs that are nearer to their end or have waited longer."
    ),
    "other-queues-first": fixed(
        "Queues that use less of their guarantee come first, or the job is too large."
    ),
    "user-limit-of-queue": fixed("Its owner is at the per-user limit of the queue."),
    "queue-gives-back": fixed(
        "Its queue is above its share, and the policy preempts the youngest gangs of the queue."
    ),
    "tier-does-not-fit": fixed(
        "The share promised to its tier does not fit in addition to the shares promised to other "
        "jobs."
    ),
    "share-is-used": fixed("Its share is used up, or too few devices remain."),
    "promises-leave-too-little": fixed("Too few devices remain after the promised shares."),
}
