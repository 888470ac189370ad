"""Messages for refused queries, and phrases of query results."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, fixed

LOOKUPS: Final[Mapping[str, Template]] = {
    "no-such-job": fixed("Job not found, or you may not see it."),
    "job-of-tenant": fixed("a job of %(tenant)s"),
    "search-most-characters": fixed("A search has at most %(most)s characters."),
    "no-job-state": fixed("%(state)s is not a valid job state."),
    "no-job-order": fixed("This is not a valid order of jobs."),
    "search-less": fixed("Use a shorter search text."),
    "node-not-answered-while": fixed("the node has not responded for a while"),
    "node-not-answer": fixed("the node does not respond"),
    "process-id": fixed("pid %(pid)s"),
    "truth-unknown": fixed("not yet known"),
    "truth-unleased": fixed("runs without a lease"),
    "truth-leased-idle": fixed("leased, but no process runs"),
    "truth-leased-gone": fixed("leased, but the device is gone"),
    "truth-device-gone": fixed("the device is gone"),
    "truth-restarted": fixed("the node has restarted since"),
    "no-such-node": fixed("Node not found."),
    "device-reason": fixed("Device %(index)s: %(value)s"),
    "page-size": fixed("A page has 1 to %(most)s rows."),
    "not-page-cursor": fixed("This is not a valid cursor."),
    "give-number": fixed("Give a number from 1 to %(most)s."),
    "start-again-without-cursor": fixed("Start again without a cursor."),
    "a-round": fixed("a round"),
    "policies": fixed("%(policies)s policies"),
    "no-such-round": fixed("Round not found, or deleted because of its age."),
    "no-such-sweep": fixed("Sweep not found."),
    "span-days-long": fixed("A span is %(seconds)s s to %(days)s days long."),
    "give-shorter-span": fixed("Use a start before the end, and a shorter span."),
    "not-usage-group": fixed("Usage cannot be grouped by this."),
    "period-days": fixed("A period has 1 to %(most)s days."),
    "time-outside-years": fixed("This is outside the years 2000 to 2199."),
    "no-such-virtual-cluster": fixed("Virtual cluster not found, or you may not see it."),
    "in-one-pcie": fixed("in one pcie"),
    "in-one-nvlink": fixed("in one NVLink domain"),
    "in-one-numa": fixed("in one NUMA node"),
    "in-one-socket": fixed("in one socket"),
    "in-one-node": fixed("in one node"),
    "in-one-rack": fixed("in one rack"),
    "in-one-pool": fixed("in one pool"),
    "any-device": fixed("any device"),
    "no-such-rule": fixed("Rule not found."),
    "no-such-alias": fixed("Alias not found."),
    "alias-exists": fixed("%(alias)s is already an alias of %(device_type)s."),
    "not-an-alias": fixed("This is not a valid alias."),
    "write-alias": fixed(
        "Use 1 to 60 letters, digits, dots, hyphens, underscores or plus signs, starting with a "
        "letter or digit."
    ),
    "alias-is-a-type": fixed("A device type has this name."),
    "too-many-aliases": fixed("The cluster has %(most)s aliases, the maximum."),
    "delete-unused-aliases": fixed("Delete aliases that no document uses."),
    "no-stored-wait": fixed("No stored snapshot of a recent round contains this waiting job."),
    "not-reason": fixed("The reason is empty, too long, or has control characters."),
    "give-reason": fixed("Give a reason of 1 to %(most)s characters; other users see it."),
    "not-text": fixed("The %(name)s is empty, too long, or has control characters."),
    "not-label": fixed("This is not a valid label."),
    "use-labels": fixed(
        "Use a name of 1 to 63 characters of A-Z a-z 0-9 . _ / - and a value of at most "
        "255 characters."
    ),
    "not-device-count": fixed("This is not a valid number of devices."),
    "give-number-or-null": fixed("Give a whole number from 1 to %(most)s, or null for no limit."),
    "not-labels": fixed("Labels are a mapping of at most %(most)s names to strings."),
    "job-of-other": fixed("Job %(pk)s belongs to another user."),
    "ask-owner-lead-tenant": fixed("Ask its owner or a lead of the tenant."),
    "more-than-stored-rounds": fixed("The span has more than %(most)s stored rounds."),
    "no-stored-round": fixed("The span contains no stored rounds."),
    "no-round-of-cluster": fixed(
        "The first stored round of the span does not contain this virtual cluster."
    ),
    "more-than-jobs": fixed("The cluster has more than %(most)s jobs in the span."),
    "choose-another-span": fixed(
        "Choose another span. Rounds older than TESSERA_KEEP_ROUND_FILES_DAYS days are deleted."
    ),
    "guarantee-does-not-fit": fixed(
        "The cluster cannot guarantee %(devices)s devices of type %(type)s (%(witness)s)."
    ),
    "guarantee-at-most": fixed("Use at most %(most)s devices of type %(type)s."),
    "too-many-questions": fixed("%(most)s of your what-if queries are still waiting."),
    "no-such-question": fixed("What-if query not found, or older than a day."),
    "query-timed-out": fixed("It took longer than %(seconds)s seconds; choose a shorter span."),
    "query-failed": fixed("It failed with %(error)s."),
    "the-what-if": fixed("the what-if"),
    "query-cancelled": fixed("Cancelled."),
    "not-end-of-shadow": fixed("This is not a valid end of a shadow policy."),
    "give-end-of-shadow": fixed("Give a time as in 2026-03-01T12:00:00Z, or none."),
    "policy-too-slow": fixed("Not finished within %(seconds)s s."),
    "not-number-nodes-type": fixed("This is not a valid change of the nodes of a type."),
    "use-node-changes": fixed(
        "Name types of this cluster (%(types)s), each with -%(most)s to %(most)s nodes."
    ),
    "fewer-nodes-than": fixed("The cluster has %(possible)s nodes of type %(type)s."),
    "not-past-span": fixed("This is not a valid span of the past."),
    "give-past-span": fixed("Use a start before the end, at most %(days)s days earlier."),
    "not-number-devices-type": fixed("This is not a valid number of devices of an existing type."),
    "wait-one-them": fixed("Wait until one of them is finished."),
    "host-not-hold-log": fixed("The log is not on this host"),
    "ask-portal-on-host": fixed(
        "Use the portal on that host, or let all hosts share one data directory."
    ),
    "restore-data-directory": fixed("Restore the data directory."),
    "no-node-service": fixed(
        "No node service manages this node. Check the workers of queue `nodes`."
    ),
    "in-one-pcie-each": fixed("in one pcie each"),
    "in-one-nvlink-each": fixed("in one NVLink domain each"),
    "in-one-numa-each": fixed("in one NUMA node each"),
    "in-one-socket-each": fixed("in one socket each"),
    "in-one-node-each": fixed("in one node each"),
    "wanted-devices": fixed("%(devices)s × %(types)s"),
    "wanted-one-cpu": fixed("1 CPU and %(memory)g GiB"),
    "wanted-cpus": fixed("%(cpus)g CPUs and %(memory)g GiB"),
    "wanted-instances": fixed("%(count)s × %(wanted)s"),
    "wanted-within": fixed("%(wanted)s %(shape)s"),
    "wanted-on-pinned-cell": fixed("%(wanted)s on pinned cell %(pinned_cell)s"),
    "wanted-by-role": fixed("%(role)s %(wanted)s"),
    "wanted-together": fixed("%(members)s"),
    "no-healthy-device": fixed("no healthy device"),
    "no-healthy-device-because": fixed("no healthy device: %(noticed)s"),
    "log-temporarily-unreadable": fixed("The log is temporarily not readable"),
    "file-storage-not-responding": fixed("The object store does not respond."),
    "log-remains-on-node": fixed("No output is lost: the node stores it. Try again in 5 s."),
    "log-part-not-in-storage": fixed("The storage has %(held)s of %(end)s bytes of the log."),
    "repeat-storage-migration": fixed(
        "If the storage was changed, an admin runs manage.py migrate_storage again."
    ),
    "stored-round-not-readable": fixed("The stored round is temporarily not readable."),
    "upload-not-stored": fixed("The object store does not respond, so the file was not stored."),
    "upload-again-later": fixed("Upload it again in some minutes."),
    "log-part-held": fixed("This host has %(held)s of %(end)s bytes of the log; %(where)s."),
    "log-missing-on": fixed("it is missing on %(host)s"),
    "log-on-host": fixed("it is on %(host)s"),
    "log-on-another-host": fixed("it is on another host"),
    "no-place-owned": fixed(
        "virtual cluster %(name)s has no room for %(n)s × %(level)s: %(nodes)s belongs to "
        "another tenant until an admin resets it"
    ),
    "no-place-barred": fixed(
        "virtual cluster %(name)s has no room for %(n)s × %(level)s: %(nodes)s is dedicated to "
        "other tenants or below its minimum isolation level"
    ),
    "no-place-single-tenant": fixed(
        "virtual cluster %(name)s has no room for %(n)s × %(level)s: %(nodes)s does not isolate "
        "jobs and serves one tenant at a time"
    ),
    "each-of": fixed("each of %(names)s"),
    "witness": fixed("%(witness)s."),
    "the-nodes": fixed("the nodes"),
    "the-promise": fixed("the audits of the sharing promise"),
    "the-cluster-state": fixed("the state of the cluster"),
    "the-shares": fixed("the explained shares"),
    "the-rounds": fixed("the rounds"),
    "no-such-cluster": fixed("Virtual cluster not found."),
    "no-such-attempt": fixed("Attempt not found."),
    "no-such-role-of-job": fixed("This is not a role of the job."),
    "no-such-rank": fixed("This is not a rank of the role."),
    "use-up-to-characters": fixed("Use up to %(most)s characters."),
    "use-characters": fixed("Use 1 to %(most)s characters."),
    "use-label-object": fixed('Use an object such as {"rack": "r1"}.'),
    "use-job-state": fixed("Use live, ended, or one of %(names)s."),
    "write-date": fixed("Write 2026-03-31."),
    "use-string": fixed("Use a string."),
    "name-types": fixed("Name types of this cluster (%(names)s), with at least 0 devices each."),
    "log-search-length": fixed(
        "A log search takes 1 to %(most)s printable characters without a line break."
    ),
    "use-words-of-line": fixed("Use a few words of the line."),
    "not-job-id": fixed("This is not a valid job ID."),
    "use-job-ids": fixed("Use job IDs, separated by commas."),
    "too-many-compared": fixed("There are too many jobs."),
    "use-at-most": fixed("Use at most %(most)s."),
}
