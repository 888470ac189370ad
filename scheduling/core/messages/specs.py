"""Messages for errors in the specification of a job, and their remedies."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, counted, fixed

SPECS: Final[Mapping[str, Template]] = {
    "batch-not-divisible": fixed("does not divide the batch of %(batch)s evenly."),
    "use-divisor": fixed("Use a divisor of %(batch)s."),
    "give-stages": fixed(
        "Give the stages of the plan, such as [{first: 0, last: 6, data: 2}], or use plan: auto."
    ),
    "give-parallel": fixed("Give parallel, such as {batch: 64, micro_batches: 8}."),
    "omit-parallel": fixed("Omit parallel, or use one role."),
    "parallel-needs-hybrid": fixed("does not fit parallel."),
    "write-mode-hybrid": fixed("Write mode: hybrid, or omit parallel."),
    "profile-needs-one-device": fixed(
        "requires one device and no elastic; the job has %(devices)s."
    ),
    "use-one-device": fixed("Use one device without elastic, or another value of profile."),
    "stages-need-devices": fixed("need %(own)s devices; the job requests %(devices)s."),
    "change-stages-or-devices": fixed("Change data or tensor of the stages, or the devices."),
    "fixed-plan-needs": fixed("is less than the %(own)s devices of the fixed plan."),
    "write-smaller-max-or-batch": fixed("Use a smaller max, or a batch with more divisors."),
    "not-power-of-two": fixed("does not fit hybrid parallelism: %(size)s is not a power of two."),
    "use-power": fixed("Use 1, 2, 4, 8 and so on."),
    "not-plan": fixed("are not a valid plan: %(reason)s."),
    "correct-plan": fixed("Correct the stages, batch or micro_batches."),
    "not-stages": fixed("is not a list of stages, or has too many."),
    "write-stages": fixed(
        "Write 1 to %(most)s stages, such as [{first: 0, last: 3, data: 2}, {first: 3, last: 6}]."
    ),
    "write-one-of": fixed("Write one of %(names)s."),
    "below-initial-batch": fixed("is below the initial batch of %(first)s."),
    "write-or-more": fixed("Write %(first)s or more."),
    "above-largest-batch": fixed("is above the largest batch of %(most)s."),
    "write-or-less": fixed("Write %(most)s or less."),
    "epochs-and-steps": fixed("cannot be combined with total_steps."),
    "omit-one": fixed("Omit one of them."),
    "fewer-workers-than-devices": fixed(
        "is fewer than the %(most)s devices that the job may get."
    ),
    "write-more-or-smaller-max": fixed("Write %(most)s or more, or a smaller max."),
    "missing": fixed("is missing."),
    "needs-mode": fixed("requires mode %(value)s."),
    "write-mode": fixed("Write mode: %(value)s, or omit %(name)s."),
    "kind-other": fixed("a value of another type"),
    "kind-fraction": fixed("a number with a fraction"),
    "kind-text": fixed("a text"),
    "kind-object": fixed("an object"),
    "kind-list": fixed("a list"),
    "write-priority": fixed(
        "Write the name of a priority class, such as prod, or a number from 0 to 1000."
    ),
    "write-label-key": fixed("Write a key such as team or example.com/team."),
    "write-role-name": fixed(
        "Write a name of at most 32 characters of a-z, 0-9 and - that begins with a "
        "letter, such as worker."
    ),
    "write-job-id": fixed("Write the id of a job, a whole number."),
    "write-path": fixed(
        "Write an absolute path without .., such as /shared/checkpoints, or the name of a storage."
    ),
    "not-storages": fixed("is not a list of storages, or has too many."),
    "write-storages": fixed(
        "Write at most %(most)s storages, such as [{name: datasets, mount: /data}]."
    ),
    "write-storage-name": fixed(
        "Write the name of a storage, of at most 40 characters of a-z, 0-9 and -."
    ),
    "not-mount": fixed("is not a valid mount point."),
    "write-mount": fixed(
        "Write an absolute path without .., outside directories of the system and of the job, "
        "such as /data."
    ),
    "mounts-conflict": fixed("is inside or equal to mount point %(other)s."),
    "use-another-mount": fixed("Use another mount point."),
    "help-storage-name": fixed("Name of the storage."),
    "no-such-storage": fixed(
        "The storage does not exist, or jobs of this virtual cluster may not use it."
    ),
    "no-storages-yet": fixed(
        "Omit it, or ask a cluster admin for a storage that this virtual cluster may use."
    ),
    "storage-read-only": fixed("Storage %(name)s is read-only."),
    "omit-read-only": fixed("Omit read_only, or use read_only: true."),
    "no-role": fixed("does not name a role."),
    "give-role": fixed("Give at least one role."),
    "too-many-instances": fixed("has %(total)s instances in total."),
    "use-fewer-instances": fixed("Use at most %(most)s instances in all roles together."),
    "not-path": fixed("is not a valid path."),
    "system-directory": fixed("is a system directory of the node, or a hidden one."),
    "write-role": fixed("Write the name of a role of this job."),
    "write-virtual-cluster": fixed("Write the name of a virtual cluster, such as vision-a."),
    "only-for-guests": fixed("requires allowed: true."),
    "allow-or-omit": fixed("Write allowed: true, or omit it."),
    "give-guest-memory": fixed("Write the minimum device memory, such as memory: 6GiB."),
    "wants-below-memory": fixed("must be at least memory."),
    "raise-wants": fixed("Raise wants, or omit it."),
    "guest-needs-one-device": fixed("requires one instance with one device."),
    "one-device-or-omit": fixed("Use one instance with one device, or omit allowed."),
    "sharing-of-guaranteed": fixed("requires a guaranteed job; this one is opportunistic."),
    "sharing-of-opportunistic": fixed("requires an opportunistic job; this one is guaranteed."),
    "omit-or-opportunistic": fixed("Omit %(name)s, or use class: opportunistic."),
    "write-slowdown": fixed("Write a percentage from 1 to 20, such as 5."),
    "needs-guaranteed-job": fixed("requires a guaranteed job; this one is opportunistic."),
    "use-guaranteed-or-omit-pin": fixed("Use class: guaranteed, or omit pinned_cell."),
    "needs-gang-of-one-role": fixed("requires a gang of one role."),
    "rank-too-high": fixed("must be below size."),
    "too-many-ports": fixed("has %(total)s ports in total."),
    "use-fewer-ports": fixed("Use at most %(most)s ports for all instances together."),
    "omit-elastic": fixed("Omit elastic, or use one role."),
    "needs-job-without-gang": fixed("requires gang: false."),
    "write-gang-false": fixed("Write gang: false."),
    "part-of-several-instances": fixed("requires a job of 1 instance; this job has more."),
    "document-too-large": fixed("is larger than 256 KiB."),
    "upload-archive": fixed("Upload large files as the source archive."),
    "not-role": fixed("is not a role of this job."),
    "remove-it": fixed("Remove it."),
    "write-device-type": fixed("Write the name of a device type."),
    "write-devices": fixed("Write the devices of each instance, a whole number from 0 to 256."),
    "write-image": fixed(
        "Write the name of an image, such as registry.example.org/team/train:1.2."
    ),
    "write-variable": fixed('Write a text of at most 32 KiB, numbers in quotes, such as "3".'),
    "write-port-label": fixed("Write a label of letters, digits and _, such as http."),
    "write-variable-name": fixed("Write a name of letters, digits and _, such as EPOCHS."),
    "device-too-small": fixed("one device cannot contain %(devices)s devices."),
    "choose-wider-level": fixed("Use `within: pcie`, `socket` or `node`, or set `devices: 1`."),
    "keep-pinned-or-types": fixed("Give either pinned_cell or device_types."),
    "also-in-env": fixed("is also a variable in env."),
    "remove-one": fixed("Remove one of the two."),
    "not-secret-of-role": fixed("is not a secret of this role, or the role has no image."),
    "size-companion": fixed("Give the CPUs and the memory of a role without devices."),
    "needs-devices": fixed("requires a role with devices."),
    "plan-sets-processes": fixed(
        "cannot be combined with parallel: the parallel plan determines the processes."
    ),
    "omit-processes": fixed(
        "Omit processes, and start the training with python3 -m tessera.train.launch."
    ),
    "choose-another-name": fixed("Choose another name."),
    "give-secret-again": fixed("Enter the secret again."),
    "zero-ends-at-start": fixed("would end the job before it starts."),
    "more-than-instances": counted(
        "is more than the %(instances)s instance of the role.",
        "is more than the %(instances)s instances of the role.",
        by="instances",
    ),
    "write-instances-or-never": fixed("Write -1 or a number from 1 to %(instances)s."),
    "not-login": fixed("is not a valid login of a registry."),
    "write-login": fixed("Write user:password."),
    "write-secret-name": fixed("Write the name of one of the role's secrets."),
    "write-cpus": fixed("Write a number above 0 and up to 4096, such as 4 or 0.5."),
    "write-line": fixed("Write %(least)s to %(most)s printable characters on one line."),
    "write-note": fixed("Write at most 500 characters."),
    "write-command": fixed(
        "Write the shell script as one text of at most 64 KiB; it may have several lines."
    ),
    "write-duration": fixed(
        "Write seconds or a text such as 90s, 15m, 2h or 1d2h30m, from %(lowest)s to "
        "%(highest)s seconds."
    ),
    "write-memory": fixed(
        "Write bytes or a text such as 512MiB, 8GB or 8GiB, from 1MiB to 64TiB."
    ),
    "write-instant": fixed(
        "Write ISO 8601 with an offset, such as 2030-05-01T08:00:00Z or ...T08:00:00+02:00."
    ),
    "wrong-kind": fixed("must be %(wanted)s, not %(found)s."),
    "write-integer": fixed("Write a whole number from %(lowest)s to %(highest)s."),
    "kind-boolean": fixed("true or false"),
    "write-boolean": fixed("Write true or false, without quotes."),
    "kind-integer": fixed("a whole number"),
    "out-of-range": fixed("must be %(lowest)s to %(highest)s."),
    "cpus-out-of-range": fixed("must be above 0 and at most 4096."),
    "has-nul": fixed("contains a NUL character."),
    "remove-nul": fixed("Remove the NUL character."),
    "wrong-form": fixed("does not have the right form."),
    "wrong-length": fixed("must have %(least)s to %(most)s characters."),
    "has-unprintable": fixed("contains the unprintable character U+%(code)s."),
    "space-at-end": fixed("begins or ends with a space."),
    "remove-space": fixed("Remove the space at the end."),
    "note-too-long": fixed("must have at most 500 characters."),
    "too-many-bytes": fixed("has %(size)s bytes; at most %(most)s are allowed."),
    "empty": fixed("is empty."),
    "kind-instant": fixed("a point in time"),
    "no-utc-offset": fixed("has no offset from UTC."),
    "outside-years": fixed("is outside the years 2000 to 2199."),
    "not-duration": fixed("is not a valid duration."),
    "not-memory": fixed("is not a valid amount of memory."),
    "not-instant": fixed("is not a valid point in time."),
    "write-git-address": fixed("Write https://host/path, ssh://user@host/path or user@host:path."),
    "write-digest": fixed("Write the SHA-256 that the upload returned, 64 digits 0-9a-f."),
    "write-ref": fixed("Write a branch, a tag or a commit, such as main or v1.2."),
    "two-sources": fixed("names two sources."),
    "keep-one-source": fixed("Give either git or archive."),
    "no-source": fixed("does not name a source."),
    "write-source": fixed("Write git or archive, or omit source."),
    "not-ref": fixed("is not a valid name of a branch, tag or commit."),
    "has-spaces-or-unprintable": fixed("contains spaces or unprintable characters."),
    "address-has-login": fixed("contains a user name or a password."),
    "omit-login": fixed("Remove it from the address; use an ssh address with a key on the node."),
    "no-host": fixed("does not name a valid host."),
    "no-repository": fixed("does not name a valid repository."),
    "not-git-address": fixed("is not an https or ssh address."),
    "not-address": fixed("is not a valid address."),
    "write-list": fixed("Write a list of %(words)s, at most %(most)s."),
    "write-object": fixed("Write keys and values. Valid keys: %(names)s."),
    "did-you-mean": fixed("Did you mean %(meant)s?"),
    "remove-unknown": fixed("Remove it. Valid fields: %(names)s."),
    "too-many-entries": fixed("has %(count)s entries; at most %(most)s are allowed."),
    "not-choice": fixed("is not one of the choices."),
    "unsupported": fixed("is not supported yet."),
    "unknown-field": fixed("unknown field %(field)s."),
    "named-twice": fixed("occurs twice."),
    "give-once": fixed("Give it once."),
    "quote-key": fixed("Put the key in quotes."),
    "stops-too-soon": fixed("stops the job too soon after the warning."),
    "write-later-stop": fixed("Write a stop_after at least 5 minutes after warn_after."),
    "not-rules": fixed("is not a list of rules."),
    "write-rules": fixed("Write a list of at most %(most)s rules."),
    "not-log-metrics": fixed("is not a list of metrics."),
    "write-log-metrics": fixed("Write a list of at most %(most)s metrics."),
    "not-metric-name": fixed("is not a valid name of a metric."),
    "write-metric-name": fixed(
        "Use at most 100 letters, digits, spaces and _ . / : @ %% ( ) + -, such as val/loss."
    ),
    "not-pattern": fixed("is not a valid pattern."),
    "correct-pattern": fixed("Correct it: %(error)s."),
    "mode-needs": fixed("Mode %(mode)s needs %(name)s."),
    "omit-part": fixed("Omit part."),
    "count-from-0": fixed("Count ranks from 0."),
    "widen-sizes": counted(
        "The job requests %(size)s device: use a min of at most %(size)s and a max of at least "
        "%(size)s.",
        "The job requests %(size)s devices: use a min of at most %(size)s and a max of at least "
        "%(size)s.",
        by="size",
    ),
    "sizes-exclude-request": counted(
        "does not include the requested %(size)s device.",
        "does not include the requested %(size)s devices.",
        by="size",
    ),
    "sizes-not-possible": fixed(
        "includes sizes that are not possible with instances of %(devices)s devices."
    ),
    "use-possible-sizes": fixed(
        "Use a max of at most the devices of one instance, multiples of it for min and max, or "
        "powers of two."
    ),
    "pin-and-types": fixed("cannot be combined with device_types: the pinned cell has one type."),
    "needs-image": fixed("requires an image."),
    "give-image-or-omit-container": fixed("Write image, or omit container."),
    "needs-several-instances": fixed("requires a gang of several instances."),
    "write-version-text": fixed('Write a version as text, such as "12.4".'),
    "number-for-version": fixed("is a number, but must be text."),
    "omit-rdma-or-add-instances": fixed("Omit rdma, or use 2 or more instances."),
    "shm-of-host": fixed("cannot be combined with ipc: host: the node's /dev/shm is used."),
    "omit-shm-or-ipc": fixed("Omit shm, or use ipc: private."),
    "write-container-path": fixed("Write an absolute path without .., such as /workspace."),
    "write-host-name": fixed("Write a host name, such as data.example.org."),
    "not-ip-address": fixed("is not a valid IP address."),
    "write-ip-address": fixed("Write an IP address, such as 10.1.0.5."),
    "write-image-and-login": fixed(
        "Write image, and under secrets a value user:password by this name."
    ),
    "set-by-scheduler": fixed("%(name)s is set by the scheduler."),
    "redacted": fixed("was removed from this document."),
    "write-secret": fixed("Write the secret as a text of at most 64 KiB."),
    "write-minimum": fixed("Write -1 or a number of instances from 1 to %(most)s."),
    "omit": fixed("Omit %(name)s."),
    "give-field": fixed("Specify %(name)s: %(help)s"),
    "help-name": fixed("Name of the job, with 1 to 63 printable characters of any script."),
    "help-virtual-cluster": fixed(
        "Virtual cluster in which the job runs and whose guarantee it uses."
    ),
    "help-roles": fixed(
        "Roles of the job. The scheduler places all instances of a gang, or none."
    ),
    "help-command": fixed(
        "Shell script that each instance runs, exactly as written, at most 64 KiB."
    ),
    "help-git-url": fixed("Address of the repository: https://, ssh:// or user@host:path."),
    "help-compat-format": fixed(
        "System whose environment variables the job also gets, such as PAI_* or SLURM_*."
    ),
    "help-log-pattern": fixed("Pattern that a line must match; see Log rules."),
    "help-log-action": fixed(
        "exclude-node: the next attempt avoids the node. stop-retries: no further attempt. "
        "label: the job gets the label log-rule."
    ),
    "write-map": fixed("Write %(words)s, at most %(most)s."),
    "write-version": fixed("Write %(version)s."),
    "write-foreign-role": fixed("Write the role's name in the other system."),
    "not-unicode": fixed("is not valid Unicode (half of a surrogate pair)."),
    "write-character": fixed("Write the character itself."),
    "kind-nothing": fixed("nothing"),
    "kind-bool": fixed("a boolean"),
    "kind-int": fixed("an integer"),
    "retry-user": fixed("The command failed with its own error."),
    "retry-resource-limit": fixed("It exceeded its memory or disk limit."),
    "retry-node": fixed("The node failed or was lost; the retry avoids that node."),
    "retry-image": fixed("The image could not be fetched or started."),
    "retry-preempted": fixed("It was preempted by another job."),
    "retry-timeout": fixed("It ran longer than max_duration."),
    "retry-platform": fixed("The scheduler or the node software failed."),
    "retry-count": fixed("Maximum number of retries; -1: no limit."),
    "not-changeable": fixed("It cannot be changed while the job is queued."),
    "no-such-field": fixed("The job does not have this field."),
    "kind-number": fixed("a number"),
    "sweep-without-parameters": fixed("The sweep has no parameters."),
    "give-parameters": fixed("Give 1 to %(most)s parameters."),
    "grid-points": fixed("The grid has %(total)s points."),
    "sweep-too-large": fixed("A sweep has at most %(most)s jobs."),
    "not-variable": fixed("%(name)s is not a valid name of a variable."),
    "use-variable-name": fixed("Use letters, digits and underscores; begin with a letter."),
    "range-in-grid": fixed("%(name)s is a range, and this sweep is not a random search."),
    "give-samples-or-values": fixed("Give values, or the number of points of a random search."),
    "not-range": fixed("%(name)s is not a valid range."),
    "give-range": fixed(
        "Use uniform(0, 1), loguniform(1e-4, 1e-1) or integer(1, 8), the smaller number first."
    ),
    "too-few-points": fixed("The parameters have only about %(count)s different points."),
    "give-less-samples": fixed("Use fewer points or more values."),
    "not-sample-count": fixed("This is not a valid number of points."),
    "give-samples": fixed("Use 1 to %(most)s, or leave it empty for all points of the grid."),
    "early-stop-without-objective": fixed("An early stop needs an objective."),
    "not-objective": fixed("This is not a valid name of a metric."),
    "give-objective": fixed("Give a metric that the jobs report, and min or max."),
    "ended-early-median": fixed(
        "Ended early by the median rule: at step %(step)s its best %(metric)s is %(value)s, and "
        "the median of the mean values of %(others)s other runs is %(bound)s."
    ),
    "ended-early-asha": fixed(
        "Ended early by successive halving: at step %(step)s its best %(metric)s is %(value)s. "
        "The best runs of %(runs)s have %(bound)s or better."
    ),
    "sweep-values": fixed("%(name)s has no values, or a value occurs twice."),
    "give-values-once": fixed("Give each value once."),
    "sweep-parameter": fixed("%(name)s is not a parameter, or occurs twice."),
    "write-parameter-lines": fixed("Write a line such as LR = 0.1, 0.01 for each parameter."),
}
