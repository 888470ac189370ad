"""Messages for refused submissions and changes of jobs, and their remedies."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, counted, fixed

SUBMITS: Final[Mapping[str, Template]] = {
    "job-not-waiting": fixed("Job %(pk)s is no longer queued."),
    "tenant-is-fixed": fixed("The tenant of a job cannot be changed."),
    "only-fewer-dependencies": fixed("A queued job cannot get more dependencies."),
    "owner-limited-to-others": fixed(
        "The membership of the job's owner is limited to other virtual clusters."
    ),
    "job-changed-meanwhile": fixed("Another user has changed job %(pk)s in the meantime."),
    "clone-with-changes": fixed("Clone it with the changes."),
    "clone-into-tenant": fixed("Clone it into the other tenant."),
    "clone-with-dependencies": fixed("Clone it with more dependencies."),
    "use-cluster-of-owner": fixed(
        "Use one of the virtual clusters of the owner, or change the limits first."
    ),
    "reload-and-change": fixed("Reload the job, and repeat the change."),
    "clone-to-change-more": fixed("Clone the job to change other fields."),
    "body-over-size": fixed("The request has %(size)s bytes or more; the limit is %(most)s."),
    "leave-data-out": fixed("Exclude data and environments; fetch them in the job."),
    "make-room-for-archives": fixed(
        "Archives are deleted TESSERA_KEEP_ARCHIVES_DAYS days after their last job has ended. "
        "Until then, use git or an uploaded archive (GET /api/v1/archives/), or ask a cluster "
        "admin for a higher limit."
    ),
    "archive-over-limits": fixed(
        "The archive has more than %(files)s members or unpacks to more than %(size)s GiB."
    ),
    "archive-has-special-file": fixed("%(name)s is not a file, directory or link."),
    "give-file-name": fixed("Use 1 to %(most)s printable characters without a slash."),
    "archive-too-large": fixed("The archive is too large"),
    "archives-too-large": fixed("The tenant's archives exceed their limit"),
    "archives-over-limit": fixed(
        "The tenant's archives use %(kept)s bytes; with this one they would exceed %(most)s."
    ),
    "archive-empty": fixed("The archive is empty."),
    "archive-escapes": fixed("%(name)s is outside the directory."),
    "send-archive": fixed(
        "Send a tar.gz or zip archive of files, directories and links inside it."
    ),
    "not-archive": fixed("The file is not a tar.gz or zip archive, or it is damaged."),
    "link-escapes": fixed("%(name)s is a link to a path outside the archive."),
    "not-file-name": fixed("This is not a valid file name."),
    "archive-over-size": fixed("The archive is larger than %(size)s MiB."),
    "link-too-long": fixed("A link is too long."),
    "no-such-pinned-cell": fixed("This is not a pinned cell of virtual cluster %(name)s."),
    "gang-needs-node-network": fixed(
        "A gang of several instances needs the network of its nodes, which this installation "
        "does not allow."
    ),
    "use-one-instance": fixed(
        "Use 1 instance, or ask a cluster admin to set TESSERA_HOST_NETWORK=gangs."
    ),
    "no-racks": fixed("No node is in a rack; %(there)s."),
    "no-pools": fixed("No node is in a pool; %(there)s."),
    "use-level-node": fixed(
        "Use node or a smaller level; it contains the devices of each instance."
    ),
    "no-pins-yet": fixed(
        "It has no pinned cells. Omit pinned_cell, or ask a cluster admin to pin one."
    ),
    "nothing-guaranteed": fixed("Virtual cluster %(name)s has no guaranteed devices."),
    "use-opportunistic": fixed(
        "Use class: opportunistic, or ask a cluster admin for a guarantee."
    ),
    "archive-not-uploaded": fixed("No archive with this digest has been uploaded to the tenant."),
    "no-such-reader": fixed("No member of the tenant has this name."),
    "name-members": fixed("Use names of members of the virtual cluster's tenant."),
    "no-such-type": fixed("The cluster has no devices of type %(device_type)s."),
    "instance-larger-than-node": fixed(
        "An instance runs on one node, and no node has more than %(most)s of these devices."
    ),
    "use-more-instances": fixed("Use at most %(most)s devices, and more instances."),
    "invalid-job": fixed("The job specification is not valid"),
    "unsupported-job": fixed("The job uses a field that is not supported yet"),
    "you-are-limited-to-others": fixed(
        "Your membership is limited to other virtual clusters of the tenant."
    ),
    "image-ignored": fixed(
        "images: ignore is set, so %(roles)s runs as a process without its image."
    ),
    "no-pool-for-it": fixed(
        "It has no devices, and no node has enough CPUs and memory that belong to no device: the "
        "largest has %(cpus)g CPUs and %(memory)g GiB. It waits until an admin changes this."
    ),
    "no-limits-anywhere": fixed("CPU and memory limits are not enforced on any node."),
    "gang-network-shared": fixed(
        "Network shared: instances of a gang use the network of their nodes."
    ),
    "network-shared": fixed("Network shared: no node gives this job its own network."),
    "use-your-cluster": fixed("Use one of your virtual clusters, or ask a lead."),
    "not-isolated": fixed("Not isolated: all nodes have isolation level none."),
    "no-limits-somewhere": fixed("CPU and memory limits are not enforced on some nodes."),
    "network-may-be-shared": fixed(
        "Network may be shared: some nodes do not give this job its own network."
    ),
    "give-your-job": fixed("Give the ID of one of your jobs, or of a job of your tenant."),
    "maybe-not-isolated": fixed(
        "The job may run without isolation: some nodes have isolation level none."
    ),
    "no-priority-class": fixed("Priority class %(priority)s does not exist."),
    "no-cluster-for-you": fixed("Virtual cluster not found, or you may not use it."),
    "held-by-lead": fixed("A lead of the tenant or a cluster admin put job %(pk)s on hold."),
    "live-job-limit": fixed("Limit of live jobs reached"),
    "stop-jobs-or-raise-limit": fixed(
        "Stop jobs, wait until some end, or ask for a higher limit: a lead sets the limit of a "
        "person, a cluster admin that of a tenant."
    ),
    "not-job-limit": fixed("This is not a valid limit of jobs."),
    "give-job-limit": fixed("Use 1 to %(most)s, or null for the wider limit."),
    "no-gang": fixed("gang is false: its %(count)s instances are separate jobs."),
    "filters-too-long": fixed("These filters are too long."),
    "too-many-views": fixed("You have the maximum of %(most)s views."),
    "no-such-view": fixed("View not found."),
    "no-such-template": fixed("Template not found."),
    "template-of-other": fixed("The template belongs to another user."),
    "not-name": fixed("This is not a valid name."),
    "not-template": fixed("This document cannot be stored as a template."),
    "no-such-tenant": fixed("Tenant not found."),
    "too-many-templates": fixed("You have the maximum of %(most)s templates."),
    "use-fewer": fixed("Use fewer."),
    "template-exists": fixed("A template with this name already exists."),
    "write-shorter-job": fixed("Write a job of at most %(most)s characters."),
    "rename-or-delete": fixed("Choose another name, or delete that template."),
    "too-many-jobs": fixed("A request takes 1 to %(most)s jobs."),
    "secrets-not-copied": fixed("Secrets are not copied: %(lost)s."),
    "needs-submitter": fixed("Only a user can submit a job."),
    "split-list": fixed("Split the list."),
    "not-job-count": fixed("This is not a valid number of jobs."),
    "limit-releases-held": fixed("The jobs are on hold, and a limit would release them."),
    "sweep-of-other": fixed("Sweep %(pk)s belongs to another user."),
    "give-sweep-limit": fixed("Use 1 or more, or leave it empty for no limit."),
    "remove-limit-or-held": fixed("Remove the limit and release them one by one, or remove held."),
    "visible-paths": fixed("Visible paths of nodes: %(paths)s."),
    "visible-paths-and-more": fixed("Visible paths of nodes: %(paths)s and %(n)s more."),
    "too-many-live-jobs-of-person": counted(
        "%(name)s has %(live)s live job; %(new)s more would exceed the limit of %(most)s per "
        "person.",
        "%(name)s has %(live)s live jobs; %(new)s more would exceed the limit of %(most)s per "
        "person.",
    ),
    "too-many-live-jobs-of-tenant": counted(
        "%(name)s has %(live)s live job; %(new)s more would exceed the limit of %(most)s per "
        "tenant.",
        "%(name)s has %(live)s live jobs; %(new)s more would exceed the limit of %(most)s per "
        "tenant.",
    ),
    "use-priority": fixed("Use a number from 0 to 1000."),
    "use-priority-or-class": fixed("Use a number from 0 to 1000 or one of: %(names)s."),
    "template-needs-owner": fixed("A template needs an owner."),
    "number-of-changes": fixed("A path can have 1 to %(most)s changes."),
    "send-changes": fixed('Send {"changes": {"roles.worker.devices": 4}}.'),
    "use-new-key": fixed("Use a new key for a new job."),
    "not-idempotency-key": fixed("An idempotency key has at most %(most)s printable characters."),
    "use-uuid": fixed("Use a UUID."),
    "key-used-elsewhere": fixed(
        "The key was already used for another request, or for a job that you may not see now."
    ),
    "key-used-for-no-copy": fixed(
        "The key was used for job %(job)s, which is not a copy of this one."
    ),
    "key-used-for-other-document": fixed(
        "The key was used for job %(job)s, which had a different document."
    ),
    "upload-archive-first": fixed(
        "Upload it first (POST /api/v1/archives/) and use the returned digest."
    ),
    "key-used-for-sweep": fixed("The key was used for sweep %(sweep)s, which is different."),
    "use-new-key-for-sweep": fixed("Use a new key for a new sweep."),
}


#: Reasons why the cluster can never run a job.
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
