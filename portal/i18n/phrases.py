"""Translatable texts of other packages: policy descriptions, probe remedies and states."""

from typing import Final

from django.utils.translation import gettext_noop as _

PHRASES: Final = (
    _("Its cells have changed. The old shape stays in use while jobs hold devices."),
    _("No node service manages this node. Check the workers of queue `nodes`."),
    _("admitted"),
    _(
        "Allow the system calls unshare, mount and pivot_root in the seccomp profile of the"
        " container in which the node runs."
    ),
    _("Another large document of yours is still being parsed"),
    _("Backfill"),
    _("Chooses each job's device type and size to maximise the sum of scaled goodputs."),
    _("Chooses each job's device type and size for early completion, without starvation."),
    _(
        "Connect as root, or install the helper and its sudo rule on the node: the command "
        "`tessera node helper` writes the helper and prints the rule. Without them, namespace "
        "is the best level for jobs without an image."
    ),
    _("cordoned"),
    _("CPU and memory limits are not enforced"),
    _("default class"),
    _("down"),
    _("draining"),
    _("end"),
    _("exited"),
    _("failed"),
    _("file"),
    _("Searches with a genetic algorithm for the allocation with the best mean speed-up."),
    _("Runs jobs by priority; within a priority, by submit time."),
    _("Hours"),
    _("Install Docker or Podman, preferably rootless, for the node's user."),
    _("Install slirp4netns 1.1 or newer, with libslirp 4.3 or newer."),
    _(
        "Install the AppArmor profile deploy/apparmor/tessera-node, or set the sysctl "
        "kernel.apparmor_restrict_unprivileged_userns=0."
    ),
    _(
        "Install the helper of this version: write it with the command `tessera node helper`, "
        "and replace /usr/local/lib/tessera/helper.pyz on the node."
    ),
    _(
        "Install the NVIDIA Container Toolkit on the node, configure the engine for it "
        "(`nvidia-ctk runtime configure`, or `nvidia-ctk cdi generate` for CDI), restart the "
        "engine, and probe the node again."
    ),
    _("Install the package slirp4netns on the node."),
    _("Runs the jobs with the least attained service first."),
    _(
        "Make root the owner of /usr/local/lib/tessera/helper.pyz and of all directories above "
        "it, and let only root write to them. Until then, the sudo rule gives its account root "
        "access."
    ),
    _(
        "Load the kernel module tun, and let the node's user open /dev/net/tun (chmod 666 "
        "/dev/net/tun)."
    ),
    _("moment"),
    _("Network shared with its node"),
    _("No external network connection"),
    _("Admits waiting jobs, then grows the job that gains most per GPU; never shrinks a job."),
    _("Not isolated from other jobs on its node"),
    _("Gives each further device to the job with the largest gain."),
    _("Chooses type and size of each job for a large sum of throughputs."),
    _("Only users get mail."),
    _("Optimises time shares by device type, then runs the jobs with the largest deficit."),
    _("percentage"),
    _("period"),
    _("preempting"),
    _("preemption"),
    _("prepared"),
    _("preparing"),
    _("Runs jobs by priority and submit time; shorter jobs may start early (backfill)."),
    _("Probe the node again."),
    _("Guarantees deadlines with the fewest devices; the rest go to the jobs that gain most."),
    _("queued"),
    _("Queue quotas as in capacity; a job accepts less locality the longer it waits."),
    _("Raise the isolation level of the node to namespace or user."),
    _("Read the detail, repair slirp4netns on the node, and probe it again."),
    _("Read the detail, repair the node, and probe it again."),
    _(
        "Read the detail: correct /etc/tessera/helper.json on the node, or let the sudo rule "
        "name the account that Tessera uses."
    ),
    _("ready"),
    _("Remove the file ~/.tessera/isolation.json on the node, or raise its level."),
    _("reserved"),
    _(
        "Run the node outside of a container, or in one that leaves /proc unmasked (Docker: "
        "--security-opt systempaths=unconfined)."
    ),
    _("Send a smaller document, or JSON instead of YAML."),
    _("Set the sysctl kernel.unprivileged_userns_clone=1."),
    _("Set the sysctl user.max_user_namespaces to 10000 or more."),
    _("starting"),
    _("stop"),
    _("stopped"),
    _("stopping"),
    _("succeeded"),
    _("Runs the job with the fewest remaining device-seconds first."),
    _("Runs the job with the shortest remaining time first."),
    _(
        "Starts guaranteed jobs within their quota, then opportunistic jobs on the remaining "
        "devices."
    ),
    _("Serves the queue that uses the smallest fraction of its guarantee first."),
    _("Serves the tenant with the lowest past and current usage relative to its weight first."),
    _("Serves the tenant with the smallest dominant share first."),
    _("The token's scopes do not cover this."),
    _("This is not a valid label."),
    _("This is not a valid month."),
    _("This is not a valid number."),
    _("This is not a valid job."),
    _("Gives each service tier its guaranteed fraction first, then divides the rest fairly."),
    _("Time-slices jobs; packs small jobs under load, and migrates and grows jobs otherwise."),
    _("time zone"),
    _("Use a kernel with user namespaces (CONFIG_USER_NS=y)."),
    _("Use a token whose scopes cover it, or sign in."),
    _("using"),
    _("waiting"),
    _("You may not do this"),
    _("It would start in the next round."),
    _("Its node is drained"),
    _("its node has not responded for a while"),
    _("exited after the preemption notice"),
    _("never ran"),
    _("no checkpoint"),
    _("deleted"),
    _("not contacted yet"),
    _("reading the stored rounds"),
    _("the limit of the tenant"),
    _("the member's limit"),
    _("the other policy"),
    _("the policy at that time"),
    _("announcements"),
    _("device types"),
    _("import rules"),
    _("hooks"),
    _("users"),
    _("storages"),
    _("tenants"),
    _("the idle policy"),
    _("the device types"),
    _("the import rules"),
    _("the priority classes"),
    _("the storages"),
    _("the cluster's isolation level"),
    _("the actions for conditions of GPUs"),
    _("canary jobs"),
    _("cluster rules"),
    _("the registry logins of the tenant"),
    _("the tenant's archives"),
    _("templates of the tenant"),
    _("device sharing"),
    _("the member's role"),
    _("the member's cap"),
    _("list of members"),
    _("the user"),
    _("tokens"),
    _("cluster admins"),
    _("must be listed once"),
    _("must be an absolute path"),
    _("must not contain control characters"),
    _("must name something below the root, without empty parts, '.' or '..'"),
    _("must not lie in /proc, /dev, /sys or /run"),
    _("path must be a string, and writable and checkpoints true or false"),
    _("must be either writable or for checkpoints"),
    _("must have at most 1024 bytes"),
    _("must be normalized and outside the runner's directory ~/.tessera"),
    _("must not contain keys or passwords of the system"),
    _("must be a string"),
    _("must be an absolute path, or server:/export"),
    _("must not be a directory of the system"),
    _("must consist of names of A-Z a-z 0-9 . _ @ + - that do not begin with . or -"),
    _("must be an absolute path without .. and hidden directories, such as /data"),
    _("must be outside directories of the system and of the job, such as /usr and /tmp"),
    _("no complete checkpoint is left"),
    _("the node is not reachable from this host"),
    _("the job is being preempted again"),
    _("the copy takes too long"),
)
