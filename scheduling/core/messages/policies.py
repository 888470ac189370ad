"""Why a policy of this project lets a job wait."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, fixed

POLICIES: Final[Mapping[str, Template]] = {
    "others-first": fixed(
        "Others come before it by the policy's order, and what is left is too small."
    ),
    "nothing-left-or-lent": fixed("Nothing is left or lent."),
    "account-is-full": fixed("Its account holds as much as it may."),
    "kept-for-longest": fixed("Places are kept for job %(id)s, which waits longest."),
    "reservation-now": fixed("It has a reservation now."),
    "reservation-in": fixed("It has a reservation in %(minutes)s min."),
    "would-delay": fixed("To start it would put off jobs before it."),
    "other-slice": fixed("It has its turn in another slice of time."),
    "no-type-has-enough": fixed("No type has as many free devices as it needs at least."),
    "share-not-behind": fixed("Its turn comes when its share of the time falls behind."),
    "others-gain-more": fixed(
        "What there is does more for jobs that are nearer to their end, or have waited longer."
    ),
    "other-queues-first": fixed(
        "Queues that use less of their guarantee come first, or it is too large."
    ),
    "user-limit-of-queue": fixed("Its owner holds as much of the queue as one user may."),
    "queue-gives-back": fixed("Its queue is above its share, and gives its youngest gangs back."),
    "tier-does-not-fit": fixed(
        "What its tier promises does not fit beside what others have been promised."
    ),
    "share-is-used": fixed("Its share is used, or what is left is too small."),
    "promises-leave-too-little": fixed(
        "What is left after the promised shares is too small for it now."
    ),
}
