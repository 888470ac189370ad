"""Texts about one job: its wait and the remedies, its events, and the causes of its end."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, counted, fixed

#: States of jobs that do not wait, start times, and remedies.
JOBS: Final[Mapping[str, Template]] = {
    "not-hybrid": fixed("Job %(job)s has no hybrid parallelism: its document has no `parallel`."),
    "plan-none-yet": fixed(
        "No plan yet: the model has not been profiled, so its training uses replicas."
    ),
    "plan-none": fixed("No attempt of this job had a plan."),
    "plan-given": fixed(
        "%(shape)s on %(devices)s x %(device_type)s: the stages of the job's document."
    ),
    "plan-replicas": fixed(
        "%(shape)s on %(devices)s x %(device_type)s: replicas, since this size has no known plan."
    ),
    "plan-only": fixed(
        "%(shape)s on %(devices)s x %(device_type)s: the only plan of this size that can run."
    ),
    "plan-fastest": fixed(
        "%(shape)s on %(devices)s x %(device_type)s gives %(rate)s samples/s, %(gain)s more than "
        "%(second)s."
    ),
    "plan-was-fastest": fixed(
        "%(shape)s on %(devices)s x %(device_type)s was the fastest plan at its start; by current "
        "estimates it gives %(rate)s samples/s, %(gain)s less than %(second)s."
    ),
    "plan-and-twice-more": fixed(
        "%(why)s %(devices)s x %(device_type)s would give %(gain)s more for twice the devices."
    ),
    "plan-and-twice-less": fixed(
        "%(why)s %(devices)s x %(device_type)s would give %(gain)s less for twice the devices."
    ),
    "replanned": fixed(
        "New parallel plan: %(shape)s on %(devices)s x %(device_type)s, before %(old)s on "
        "%(old_devices)s x %(old_type)s."
    ),
    "replanned-after-bar": fixed(
        "New parallel plan: %(shape)s on %(devices)s x %(device_type)s, before %(old)s on "
        "%(old_devices)s x %(old_type)s. %(reason)s"
    ),
    "grid-needs-memory": fixed("The fullest stage needs %(needed)s of %(limit)s GB of a device."),
    "parallel-grid-too-large": fixed("A stage does not fit into the memory of a device."),
    "parallel-grid-too-slow-link": fixed(
        "Tensor groups would use a slower link than the job allows."
    ),
    "parallel-grid-not-profiled": fixed("The profile has no times for this shape."),
    "parallel-grid-not-allowed": fixed(
        "The batch cannot be divided evenly over the replicas or stages."
    ),
    "parallel-grid-memory": fixed("Barred: a run ran out of memory."),
    "parallel-grid-failed": fixed("Barred: a run failed before its first step."),
    "parallel-grid-slower": fixed("Barred: a run took more than 1.5 times as long as predicted."),
    "restarts-under-plan": fixed(
        "%(reason)s The job saves a checkpoint and restarts under %(shape)s."
    ),
    "profile-refused": fixed("The reported profile is not valid: %(reason)s"),
    "profile-stored": fixed("Profile of the model on %(device_type)s measured in %(seconds)s s."),
    "profile-requested": fixed("Job %(job)s profiles the model on %(device_type)s."),
    "links-refused": fixed("The reported link tables are not valid: %(reason)s"),
    "links-stored": fixed("Links of %(classes)s classes measured."),
    "probe-nodes-out-of-range": fixed("A probe needs 1 to %(most)s nodes."),
    "probe-nodes-remedy": fixed("Use 1 to %(most)s."),
    "probe-needs-two-devices": fixed(
        "No node has this device type, or the cluster has only 1 such device."
    ),
    "probe-type-remedy": fixed("Use a device type of the cluster with at least 2 devices."),
    "probe-is-live": fixed("Job %(job)s already measures the links of this device type."),
    "seconds": fixed("%(seconds)s s"),
    "minutes-seconds": fixed("%(minutes)s min %(seconds)s s"),
    "hours-minutes": fixed("%(hours)s h %(minutes)s min"),
    # Jobs that do not wait.
    "admitted": fixed("Its cells are bound; its nodes prepare the start."),
    "starting": fixed("It is starting on its nodes."),
    "running": fixed("It is running."),
    "running-as-guest": fixed(
        "It is running as a guest on device %(index)s of node %(node)s: it uses the device while "
        "the holder does not."
    ),
    "running-as-guest-open": fixed(
        "It is running as a guest on device %(index)s of node %(node)s: its gate is open for "
        "%(open)s of the time, and has closed %(closings)s."
    ),
    "running-in-a-pair": counted(
        "It is running on device %(index)s of node %(node)s together with %(n)s other job; its "
        "policy has paired them. %(pace)s",
        "It is running on device %(index)s of node %(node)s together with %(n)s other jobs; its "
        "policy has paired them. %(pace)s",
    ),
    "pair-pace": fixed(
        "The holder runs at %(holder)s of its speed alone, and the other job runs for %(other)s "
        "of the time."
    ),
    "pair-not-measured": fixed("Their speed together is not measured yet."),
    "running-in-turns": counted(
        "It takes turns of %(turn)s with %(n)s other job on device %(index)s of node %(node)s. "
        "%(state)s",
        "It takes turns of %(turn)s with %(n)s other jobs on device %(index)s of node %(node)s. "
        "%(state)s",
    ),
    "turn-works": fixed("It is active now."),
    "turn-suspended": fixed("It is suspended now (%(tier)s), for %(time)s so far."),
    "turn-unknown": fixed("The node has not reported yet which of them is active."),
    "closings": counted("%(n)s time", "%(n)s times"),
    "running-resized": counted(
        "It is running on %(n)s device; it requested %(asked)s. %(rule)s",
        "It is running on %(n)s devices; it requested %(asked)s. %(rule)s",
    ),
    "own-size": fixed("Its policy has chosen this size since the start."),
    "suspect": fixed("It may be running; its node has not responded for a while."),
    "preempting": fixed("It is being preempted: it saves its work and releases its devices."),
    "stopping": fixed("It is being stopped on its nodes."),
    "failed": fixed("It failed (class %(failure_class)s)."),
    "failed-because": fixed("It failed (class %(failure_class)s): %(cause)s."),
    "stopped": fixed("It was stopped before it started."),
    "stopped-because": fixed("It was stopped before it started: %(cause)s."),
    "stopped-after": fixed("It was stopped after %(time)s."),
    "stopped-after-because": fixed("It was stopped after %(time)s: %(cause)s."),
    "succeeded": fixed("Succeeded."),
    "succeeded-after": fixed("Succeeded after %(time)s."),
    # Remedies for a failed job.
    "clone": fixed("Clone it."),
    "clone-to-retry": fixed("Clone it to try again."),
    "clone-after-user-error": fixed(
        "See the last lines of the job's log, fix the error, and clone the job."
    ),
    "clone-with-memory": fixed("Request more memory or reduce its memory use, and clone the job."),
    "clone-with-time": fixed("Clone it with a longer time limit."),
    "clone-with-image": fixed(
        "Check that its image can be pulled and started, and clone the job."
    ),
    # Rounds and estimates.
    "round-due": fixed("Waiting for the next scheduling round (due within %(seconds)s s)."),
    "round-overdue": fixed("Waiting for the next scheduling round (overdue by %(seconds)s s)."),
    "no-round-ever": fixed("No round has ever run, so no job starts."),
    "no-round-for": fixed("No round for %(time)s. Running jobs continue; no new job starts."),
    "tell-admin-of-scheduler": fixed(
        "Ask a cluster admin to check the scheduler: it is not running."
    ),
    "ask-lead-to-release": fixed("Ask a lead of the tenant to release it."),
    "set-max-duration": fixed("Set max_duration on %(jobs)s to get a start estimate."),
    "estimate-varies": fixed(
        "No reliable estimate: run times in this virtual cluster vary too much."
    ),
    "estimate-few-waits": fixed(
        "No start estimate: too few jobs of this virtual cluster have started after a wait."
    ),
    "estimate-unlimited": counted(
        "No reliable estimate: %(n)s running job has no time limit.",
        "No reliable estimate: %(n)s running jobs have no time limit.",
    ),
}


#: Events of a job: actions of users, ends of its processes, reports of its training.
EVENTS: Final[Mapping[str, Template]] = {
    "submitted-by": fixed("%(username)s submitted it"),
    "changed-by": fixed("%(username)s changed it (%(words)s)"),
    "stopped-by": fixed("Stopped by %(username)s"),
    "requested-by": fixed("Requested by %(username)s"),
    "ended-with-code": fixed("%(role)s ended with exit code %(exit_code)s"),
    "ended-by-signal": fixed("%(role)s was ended by signal %(exit_signal)s"),
    "job-of-id": fixed("job %(id)s"),
    # The end of an attempt.
    "ended-unsaved": fixed("%(reason)s, no checkpoint"),
    "ended-saved": fixed("%(reason)s, checkpoint saved"),
    "ended-at-step": fixed("%(reason)s, checkpoint at step %(step)s"),
    # Reports of a training.
    "one-checkpoint": fixed("checkpoint", "report of a training job"),
    "checkpoint-of-step": fixed("checkpoint of step %(step)s"),
    "without-hash": fixed("without a hash"),
    "checkpoint-saved": fixed("%(checkpoint)s saved, %(sha256)s."),
    "training-resumed": fixed("Training continues from the %(checkpoint)s, %(sha256)s."),
    "checkpoint-not-saved": fixed("The %(checkpoint)s could not be saved."),
    "checkpoint-not-saved-because": fixed("The %(checkpoint)s could not be saved: %(reason)s."),
    "checkpoint-damaged": fixed("The checkpoint %(path)s is damaged; the previous one is used."),
    "checkpoint-damaged-because": fixed(
        "The checkpoint %(path)s is damaged: %(reason)s; the previous one is used."
    ),
    "notice-acknowledged": fixed("The job has acknowledged the notice to leave."),
    "notice-acknowledged-because": fixed(
        "The job has acknowledged the notice to leave (%(reason)s)."
    ),
    "trains-with-batch": fixed("It trains with %(batch)s samples per step."),
    "trains-with-batch-from": fixed(
        "It trains with %(batch)s samples per step from step %(step)s on."
    ),
    "another-number": fixed("another number of"),
    "not-reported": fixed("not reported"),
    "logical-workers": fixed("Logical workers by process: %(counts)s."),
    "checkpoint-moved": fixed(
        "The checkpoint of step %(step)s was copied from %(path)s (%(bytes)s bytes, verified)."
    ),
    "checkpoint-left": fixed(
        "The checkpoint of step %(step)s was not copied from %(path)s: %(reason)s. Training "
        "continues from a checkpoint on the new node, or from the beginning."
    ),
    "level-refused": fixed("%(level)s is refused: %(found)s."),
    "level-kept-but": fixed("%(level)s is in effect, but %(found)s."),
    "level-kept": fixed("The model supports %(level)s."),
    "model-cannot": fixed("the model does not support it"),
}


#: Short phrases for causes and states.
WORDS: Final[Mapping[str, Template]] = {
    "failure-user": fixed("the job's own error"),
    "failure-resource-limit": fixed("a resource limit"),
    "failure-node": fixed("a node failure"),
    "failure-image": fixed("the image"),
    "failure-timeout": fixed("the time limit"),
    "failure-platform": fixed("the platform"),
    "cause-guarantee": fixed("another virtual cluster reclaimed its cells"),
    "cause-priority": fixed("a job of higher priority"),
    "cause-borrowed": fixed("borrowed devices were reclaimed"),
    "cause-policy": fixed("its policy"),
    "cause-resize": fixed("another size"),
    "cause-move": fixed("a move"),
    "cause-slower": fixed("a size that made it slower"),
    "cause-drain": fixed("a drain"),
}


#: Changes of a waiting job that would start it now.
CHANGES: Final[Mapping[str, Template]] = {
    "starts-now": fixed("%(how)s it starts now."),
    "starts-now-on-node": fixed("%(how)s it starts now; an instance stays on one node."),
    "starts-now-released": fixed("%(gates)s, it starts now."),
    "gates-and": fixed("%(gates)s and %(how)s"),
    "released": fixed("released", "a job on hold"),
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
    # The smallest possible request.
    "role-of-devices": counted(
        "%(count)s × %(n)s device in %(role)s", "%(count)s × %(n)s devices in %(role)s"
    ),
    "opportunistic-shape": fixed("opportunistic, %(shape)s"),
    "with-any-type": fixed("with %(shape)s of any type"),
    "with-any-type-and-share": fixed(
        "with %(shape)s of any type and the CPUs and memory that they include,"
    ),
    "how-in-cluster": fixed("%(how)s in virtual cluster %(name)s"),
    "policy-reprocesses": fixed("Its policy runs it with %(value)s instead of %(now)s"),
    "reverts-processes": fixed(
        "It is slower with %(slow)s than with %(fast)s and returns to that"
    ),
    "sharing-unsupported": fixed("%(shared)s would share a device, which no node supports yet"),
    "group-unsupported": fixed(
        "group %(name)s must share one device between two jobs, or among up to four in turns"
    ),
    "policy-pairs": fixed("Its policy runs it on the device of job %(holder)s"),
    "policy-separates": fixed("Its policy no longer runs it on the device of job %(holder)s"),
    "policy-preempts": fixed("Its policy gives its devices to other jobs"),
    "reverts-size": fixed("It is slower on %(held)s than on %(alloc)s and returns to that size"),
    "policy-resizes": fixed("Its policy gives it %(alloc)s instead of %(held)s"),
    "no-shape": fixed("job %(id)s has no shape with %(alloc)s"),
    "victim-of-guarantee": fixed("A guaranteed job reclaims its virtual cluster's cells"),
    "victim-of-priority": fixed("A job of higher priority in the same virtual cluster"),
    "borrows-now": fixed(
        "Its virtual cluster's guarantee no longer covers it. It continues on borrowed "
        "devices until a guaranteed job needs them"
    ),
    "guaranteed-now": fixed("Its virtual cluster's guarantee covers it again"),
    "placed-by-round": fixed("Round %(number)s assigned %(devices)s on %(nodes)s to it"),
    "placed-without-devices": fixed("Round %(number)s assigned CPUs on %(nodes)s to it"),
    "guest-leaves": fixed(
        "Guests leave a device when its holder leaves, or no longer allows them."
    ),
    "slowed-by-guests": fixed(
        "Guests slowed the job down by more than %(limit)s %% for %(minutes)s minutes; it has "
        "lost up to %(loss)s %%. To prevent this, stop sharing on its page."
    ),
    "cpu-pool-shrank": fixed(
        "Jobs without devices use more of its node than the shares of the devices leave."
    ),
    "guest-leaves-node": fixed("An admin limited the guests of the node or device."),
    "guest-leaves-switch": fixed("Device sharing was turned off for the cluster."),
    "guest-leaves-holder": fixed("The holder of the device stopped sharing it."),
    "guest-promoted": fixed("The holder of %(device)s has left: this job is now the holder."),
    "passes": counted("%(n)s pass", "%(n)s passes"),
    "batch-changed": fixed(
        "Its batch is now %(batch)s samples in %(parts)s per device instead of %(before)s: "
        "%(gain)s more goodput is expected."
    ),
    "processes-per-device": counted("%(n)s process per device", "%(n)s processes per device"),
    "devices-of-type": counted("%(n)s device of type %(type)s", "%(n)s devices of type %(type)s"),
}
