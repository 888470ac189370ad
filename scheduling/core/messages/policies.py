"""Messages for policies: parameters, and reasons of waiting jobs."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, fixed

#: Help texts of parameters, and summaries of policies.
PARAMETERS: Final[Mapping[str, Template]] = {
    "summary-filling": fixed("an order of another policy, with reservations"),
    "summary-lending": fixed("gives free and lent devices to preemptible jobs"),
    "param-protected": fixed("jobs whose start backfill must not delay"),
    "param-reservations": fixed("maximum number of reservations, for conservative backfill"),
    "param-estimate-factor": fixed("factor on run time estimates"),
    "summary-guarded": fixed("falls back to another policy if this one fails"),
    "param-fallback": fixed("policy that decides when this one fails"),
    "summary-steady": fixed("changes a job only if the gain outweighs its restart"),
    "summary-ceilings": fixed("limits the devices of an account"),
    "param-settle": fixed("minimum time between changes of a job, in seconds"),
    "param-least-gain": fixed("minimum gain of a change, as a fraction"),
    "param-payback": fixed("payback time of a change, in seconds"),
    "param-most-held": fixed("maximum number of devices of one user or tenant"),
    "summary-patient": fixed("reserves devices for jobs that waited too long"),
    "summary-urgent": fixed("jobs that may miss their deadline are served first"),
    "param-patience": fixed("seconds that a job waits before devices are reserved for it"),
    "param-reserved-seconds": fixed("seconds for which devices are reserved for a job at a time"),
    "param-time-weight": fixed("weight of the estimated remaining time"),
    "param-power-loss": fixed("fraction of the computing power that may be lost"),
    "param-mixed-types": fixed("a job may hold several device types at once"),
    "param-undo-growth": fixed("undo a growth that made a job slower"),
    "summary-elasticflow": fixed("deadlines are promised at admission and met by elastic shares"),
    "param-resize-interval": fixed("minimum time between changes of size, in seconds"),
    "param-work-factor": fixed("factor on the estimated work"),
    "param-restart-factor": fixed("factor on restart costs"),
    "param-refuse": fixed("refuse jobs whose deadline cannot be met"),
    "param-exhaustive": fixed("maximum number of jobs for which admission tries all orders"),
    "param-backfill": fixed("smaller jobs may overtake a head that does not fit"),
    "param-slice": fixed("length of a time slice in seconds"),
    "param-packing": fixed("small jobs share devices while devices are scarce"),
    "param-move-gain": fixed("minimum speed-up for moving a job"),
    "param-turns": fixed(
        "how jobs pause between turns: saved in a checkpoint, or suspended on their device"
    ),
    "param-idle-seconds": fixed("idle seconds before a job grows"),
    "param-objective": fixed("objective of the fractions"),
    "param-throughput": fixed("use the throughput of each type"),
    "param-pairs": fixed("pairs of jobs may share devices"),
    "param-scaled": fixed("scale throughput to that of the job's best type"),
    "param-split": fixed("division of a tenant's weight among its jobs"),
    "param-rotation": fixed("seconds between two rotations"),
    "param-memory": fixed("seconds for which received service counts"),
    "param-leftovers": fixed("jobs without a fraction may use remaining devices"),
    "param-young-factor": fixed("factor on the gains of jobs that started recently"),
    "kind-word": fixed("a string"),
    "param-mean-power": fixed("exponent of the mean over jobs; lower is more equal"),
    "param-population": fixed("matrices of each generation"),
    "param-generations": fixed("maximum number of generations"),
    "param-most-growth": fixed("largest size, in multiples of the most devices a job ran on"),
    "param-most-devices": fixed("maximum number of devices of one job"),
    "param-prices": fixed(
        "price of a device-hour by type, such as A100=3.2,V100=1.1; any other costs 1"
    ),
    "summary-backfill": fixed("arrival, with EASY or conservative backfill by declared run times"),
    "param-strict-queue": fixed("the head of a queue that does not fit blocks its own queue"),
    "param-preempt-queues": fixed("preempt jobs of queues above their share for queues that wait"),
    "param-tolerance": fixed("fraction above the share that is tolerated"),
    "param-most-preempted": fixed("largest fraction of all devices preempted in a round"),
    "param-user-percent": fixed("percent of a queue that each user may always use"),
    "param-user-part": fixed(
        "largest fraction of its queue's guarantee that one user may hold (0: all)"
    ),
    "param-strict-order": fixed("a job that does not fit blocks the jobs behind it"),
    "param-locality-wait": fixed("seconds that a gang waits at each locality level"),
    "param-preempt-from": fixed("fraction in use above which gangs are preempted"),
    "param-preempt-tenants": fixed("preempt jobs of tenants above their share"),
    "param-half-life": fixed("half-life of received service, in seconds"),
    "param-premium": fixed("fraction of full speed promised to tier premium"),
    "param-standard": fixed("fraction of full speed promised to tier standard"),
    "param-promise-window": fixed("seconds over which a promise is measured"),
    "param-fairness": fixed("fairness power; not 0"),
    "param-waiting-cost": fixed("cost of a waiting job"),
    "param-growth": fixed("growth over the largest size so far"),
    "param-fixed-batch": fixed("estimate with the requested batch"),
    "param-single-speed": fixed("use the speed of one device before the first start"),
    "param-solver-gap": fixed("relative gap of the solver"),
    "param-value": fixed("value work at prices of devices, or by remaining time"),
    "param-spell": fixed("seconds for which current prices of devices last"),
    "param-tilt": fixed("exponent of the remaining time in the weight at prices"),
    "param-speed-power": fixed("exponent of speed over remaining work"),
    "param-work-power": fixed("exponent of the remaining work"),
    "param-guess-power": fixed("exponent of the guessed remaining work"),
    "param-restart-payback": fixed("payback time of a restart, in seconds"),
    "param-horizon": fixed("weight of the horizon against the job's own time"),
    "param-move-cost": fixed("cost of moving a running job, in restarts"),
    "param-steps": fixed("steps ahead for each step behind"),
    "param-least-work": fixed("minimum work of a job, in seconds on its smallest size"),
    "param-prior-work": fixed("estimated run time of a job before its first run, in seconds"),
    "param-speedup-power": fixed("exponent of the speed-up before the first run of a job"),
    "param-discount-power": fixed("exponent of the discount on sizes never tried"),
    "param-spread-factor": fixed("factor for several nodes if only one was tried"),
    "param-unfair-above": fixed("finish-time fairness above which a job gets more weight"),
    "param-unfair-power": fixed("rate at which its weight grows"),
    "param-sizes": fixed("maximum number of sizes between consecutive powers of two"),
    "param-history": fixed("expect the needs of past jobs of the application"),
    "param-assignment-gap": fixed("relative gap of the assignment"),
    "summary-crius": fixed("large models by their grids: halves, doubles and moves jobs"),
    "param-depth": fixed(
        "maximum number of changes to other jobs that free devices for a waiting job"
    ),
    "param-upgrades": fixed(
        "maximum number of changes of running jobs to more devices or faster types"
    ),
    "param-halve": fixed("jobs may be halved and doubled"),
    "param-exchange": fixed("jobs may move to another device type"),
    "param-overtake": fixed("later jobs may start before a waiting job, until it fits"),
    "param-relative": fixed("throughput counts relative to that at the requested size"),
    "param-pay-restart": fixed("the gain of a change must exceed the cost of the restart"),
    "param-deadline": fixed("exclude sizes that miss the deadline, and refuse late jobs"),
    "param-order": fixed("order within and between queues"),
    "param-queues": fixed("number of queues by attained service"),
    "param-first-threshold": fixed("device-seconds after which a job leaves the first queue"),
    "param-threshold-ratio": fixed("ratio of each threshold to the previous one"),
    "param-promote": fixed("ratio of waiting to running time that promotes a job; 0: never"),
    "param-gittins-jobs": fixed("past jobs that the Gittins index needs"),
    "param-pack-limit": fixed(
        "share of the largest parameter tensor above which a job starts on one node"
    ),
    "param-pack-wait": fixed("seconds of waiting after which such a job may start on any nodes"),
    "kind-at-least": fixed("%(kind)s of at least %(low)s"),
    "kind-at-most": fixed("%(kind)s of at most %(high)s"),
    "kind-between": fixed("%(kind)s from %(low)s to %(high)s"),
    "price-pairs": fixed("pairs such as A100=3.2,V100=1.1, each price from 0.001 to 1000000"),
    "use-what": fixed("Use %(what)s."),
    "hint-default": fixed("%(text)s; default %(default)s"),
    "hint-bounds": fixed("%(text)s; %(bounds)s; default %(default)s"),
}


#: Reasons why a policy of this project does not start a job.
POLICIES: Final[Mapping[str, Template]] = {
    "others-first": fixed("The policy places other jobs first, and too few devices remain."),
    "nothing-left-or-lent": fixed("No free or lent devices remain."),
    "account-is-full": fixed("Its user or tenant is at the limit of devices."),
    "kept-for-longest": fixed(
        "The free devices are reserved for job %(id)s, which has waited longest."
    ),
    "reservation-now": fixed("It has a reservation now."),
    "reservation-in": fixed("Its reservation starts in %(minutes)s min."),
    "would-delay": fixed("Starting it now would delay jobs ahead of it."),
    "other-slice": fixed("It runs in another time slice."),
    "no-type-has-enough": fixed("No device type has enough free devices for its minimum size."),
    "no-room-by-changes": fixed(
        "Too few devices are free, and changes of other jobs do not free enough devices."
    ),
    "share-not-behind": fixed(
        "It starts when its received share of time falls behind its target share."
    ),
    "others-gain-more": fixed(
        "The policy gives the devices to jobs that are nearer to their end or have waited longer."
    ),
    "other-queues-first": fixed(
        "The policy serves queues that use less of their guarantee first, or the job exceeds "
        "the limit of its queue."
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
