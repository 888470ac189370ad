"""Translatable texts of other packages: policy descriptions, probe remedies and states."""

from typing import Final

from django.utils.translation import gettext_noop as _

PHRASES: Final = (
    _("Its cells have changed. The old shape stays in use while jobs hold devices."),
    _("No node service manages this node. Check the processes of the queue nodes."),
    _("admitted"),
    _(
        "Allow the calls unshare, mount and pivot_root in the seccomp profile of the container "
        "in which the node runs."
    ),
    _("Another large document of yours is still being parsed"),
    _("Backfill"),
    _("Chooses a type and a size for every job so that the sum of scaled goodputs is best."),
    _("Chooses type and size of every job for early completion without starvation."),
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
    _("Genetic search for the matrix of jobs and nodes with the best mean speed-up."),
    _("Higher priority first, then the earlier submit, then the smaller id."),
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
    _("Jobs that have had little so far go before those that have had much."),
    _(
        "Let /usr/local/lib/tessera/helper.pyz and all directories above it belong to root, and"
        " let nobody else write to them. Until then the sudo rule gives its account root."
    ),
    _(
        "Load the kernel module tun, and let the node's user open /dev/net/tun (chmod 666 "
        "/dev/net/tun)."
    ),
    _("moment"),
    _("Network shared with its node"),
    _("No network connection to the outside"),
    _("Admits waiting jobs, then grows the job that gains most per GPU; jobs never shrink."),
    _("Not isolated from other jobs on its node"),
    _("Gives one device after another to the job that gains most."),
    _("Only people get mail."),
    _("Optimises time shares on each type, then serves the job with the largest deficit."),
    _("percentage"),
    _("period"),
    _("preempting"),
    _("preemption"),
    _("prepared"),
    _("preparing"),
    _("Priority, then arrival; shorter jobs pass where they put off no reservation."),
    _("Probe the node again."),
    _("Guarantees deadlines with the fewest devices, and gives the rest where it gains most."),
    _("queued"),
    _("Quotas as in capacity, with a locality that is relaxed by waiting."),
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
    _("The job with the fewest device-seconds to go runs first."),
    _("The job with the least time to go runs first."),
    _("The queue with the smallest part of its guarantee in use is served next."),
    _("The tenant with the least usage and devices for its weight is served next."),
    _("The tenant with the smallest dominant share is served next."),
    _("The token's scopes do not cover this."),
    _("This is not a label."),
    _("This is not a month."),
    _("This is not a valid number."),
    _("This is not a valid job."),
    _("Tiers before fairness: guaranteed fractions first, then the rest is divided."),
    _("Time slices for all, packing under load, migration and growth without it."),
    _("time zone"),
    _("Use a kernel with user namespaces (CONFIG_USER_NS=y)."),
    _("Use a token whose scopes cover it, or sign in."),
    _("using"),
    _("waiting"),
    _("You may not do this"),
    _("It would start in the next round."),
    _("Its node is drained"),
    _("its node has not answered for a while"),
    _("left after the preemption notice"),
    _("never ran"),
    _("no checkpoint"),
    _("deleted"),
    _("not contacted yet"),
    _("reading the stored rounds"),
    _("the limit of the tenant"),
    _("the member's limit"),
    _("the other policy"),
    _("the policy of that time"),
)
