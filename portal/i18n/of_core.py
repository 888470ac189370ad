"""Shapes of the sentences and words that the core, the services and the selectors make."""

from typing import Final

from django.utils.translation import gettext_noop as _

CORE_SENTENCES: Final = (
    _("%(whole)s devices"),
    _("%(count)s instances"),
    _("%(number)s process a device"),
    _("%(number)s processes a device"),
    _("%(name)s cannot be the name of a variable."),
    _("%(name)s has no values, or one of them twice."),
    _("%(name)s: %(fault)s; first in, first out instead"),
    _("%(policies)s policies"),
    _("%(shared)s would share a device, and no node can do that yet"),
    _("%(strip)s is no parameter, or there twice."),
    _("1 instance"),
    # xgettext:no-python-format
    _("80 or 100 % of a tenant's GPU-hours of this month are used"),
    # xgettext:no-python-format
    _("80 or 100 % of a virtual cluster's guarantee is in use"),
    _("; what runs was kept"),
    _("a drain"),
    _("A guaranteed job takes back its virtual cluster's cells"),
    _("a job has failed for good"),
    _("a job has succeeded"),
    _("a job is asked to leave its devices"),
    _("a job of %(ANOTHER_TENANT)s"),
    _("a job of %(value)s"),
    _("a job of higher priority"),
    _("A job of higher priority in the same virtual cluster"),
    _("a job runs on all its nodes"),
    _("a job waits again after a preemption or a failure"),
    _("a job was stopped"),
    _("a job's devices idle, and it may be stopped for it"),
    _("a job's node does not answer"),
    _("a move"),
    _("a node failure"),
    _("a node is being emptied"),
    _("a node is down"),
    _("a node is held back"),
    _("a node missed a probe"),
    _("the disk of a node is almost full"),
    _("the data directory of a host of the portal is almost full"),
    _("a node takes work again"),
    _("A period has 1 to %(MOST_DAYS)s days."),
    _("A pinned cell is for guaranteed jobs only."),
    _("a resource limit"),
    _("a round"),
    _("a size that made it slower"),
    _("A span is %(seconds)s s to %(days)s days long."),
    _("A sweep has at most %(MOST_JOBS)s jobs."),
    _("A sweep varies something."),
    _("a test"),
    _("admitted"),
    _("an estimate counts so many times"),
    _("an order of another policy, with reservations"),
    _("and %(ids)s more"),
    _("and %(names)s more"),
    _("and more"),
    _("another size"),
    _("another virtual cluster took its cells back"),
    _("any device"),
    _("arrival, with EASY or conservative backfill by declared run times"),
    _("Ask for at most %(most)s."),
    _("Begin before the end, and not longer ago."),
    _("borrowed devices were wanted"),
    _("ceilings on what an account holds"),
    _("changes only what pays for its restart"),
    _("cordoned"),
    _("deadlines in danger come first"),
    _("deadlines promised at admission and kept by elastic shares"),
    _("Device %(index)s: %(value)s"),
    _("down"),
    _("draining"),
    _("exited"),
    _("failed"),
    _("falls back to another policy, and says so"),
    _("Give each value once."),
    _("guaranteed"),
    _("Hours"),
    _("in one node"),
    _("in one rack"),
    _("in one socket"),
    _("in one pcie"),
    _("It cannot be changed while the job waits."),
    _("It is slower on %(held)s than it was on %(alloc)s: it goes back"),
    _("It is slower with %(slow)s than it was with %(fast)s: it goes back"),
    _("Probe the node again."),
    _("Remove the file ~/.tessera/isolation.json on the node, or raise its level."),
    _("Install Docker or Podman, preferably rootless, for the node's user."),
    _(
        "Connect as root, or install the helper and its sudo rule on the node: the command"
        " `tessera node helper` writes the helper and prints the rule. Without them, namespace is"
        " the best level for jobs without an image."
    ),
    _(
        "Let /usr/local/lib/tessera/helper.pyz and all directories above it belong to root, and"
        " let nobody else write to them. Until then the sudo rule gives its account root."
    ),
    _(
        "Install the helper of this version: write it with the command `tessera node helper`,"
        " and replace /usr/local/lib/tessera/helper.pyz on the node."
    ),
    _(
        "Read the detail: correct /etc/tessera/helper.json on the node, or let the sudo rule name"
        " the account that Tessera uses."
    ),
    _(
        "Install the AppArmor profile deploy/apparmor/tessera-node, or set the sysctl "
        "kernel.apparmor_restrict_unprivileged_userns=0."
    ),
    _("Set the sysctl kernel.unprivileged_userns_clone=1."),
    _("Set the sysctl user.max_user_namespaces to 10000 or more."),
    _(
        "Allow the calls unshare, mount and pivot_root in the seccomp profile of the "
        "container in which the node runs."
    ),
    _("Use a kernel with user namespaces (CONFIG_USER_NS=y)."),
    _(
        "Run the node outside of a container, or in one that leaves /proc unmasked "
        "(Docker: --security-opt systempaths=unconfined)."
    ),
    _("Read the detail, repair the node, and probe it again."),
    _("Not isolated from other jobs on its node"),
    _("Not isolated: all nodes have isolation level none."),
    _("The job may run without isolation: some nodes have isolation level none."),
    _("CPU and memory limits are not enforced on any node."),
    _("CPU and memory limits are not enforced on some nodes."),
    _("CPU and memory limits are not enforced"),
    _("Network shared with its node"),
    _("No network connection to the outside"),
    _("Network shared: instances of a gang use the network of their nodes."),
    _("Network shared: no node gives this job a network of its own."),
    _("Network may be shared: some nodes give this job no network of its own."),
    _("Visible paths of nodes: %(paths)s."),
    _("Raise the isolation level of the node to namespace or user."),
    _("Install the package slirp4netns on the node."),
    _("Install slirp4netns 1.1 or newer, with libslirp 4.3 or newer."),
    _(
        "Load the kernel module tun, and let the node's user open /dev/net/tun "
        "(chmod 666 /dev/net/tun)."
    ),
    _("Read the detail, repair slirp4netns on the node, and probe it again."),
    _(
        "virtual cluster %(name)s has no place for %(whole)s × %(level)s: %(nodes)s belongs to "
        "another tenant until an admin resets it"
    ),
    _(
        "virtual cluster %(name)s has no place for %(whole)s × %(level)s: %(nodes)s is dedicated "
        "to other tenants or below its minimum isolation level"
    ),
    _(
        "virtual cluster %(name)s has no place for %(whole)s × %(level)s: %(nodes)s does not "
        "isolate jobs and serves one tenant at a time"
    ),
    _("Promise whole nodes to each tenant there, reset the node, or raise its isolation level."),
    _(
        "Promise fewer or smaller cells there, whole nodes where they do not isolate jobs, or "
        "add nodes."
    ),
    _("Its deadline cannot be kept beside those that have been promised."),
    _("its policy"),
    _("Its policy gives it %(alloc)s instead of %(held)s"),
    _("Its policy gives its devices to others"),
    _("Its policy runs it with %(value)s instead of %(now)s"),
    _("Its virtual cluster's policy refuses it."),
    _("job %(for_job_id)s"),
    _("job %(id)s has no shape with %(alloc)s"),
    _("keeps places for whoever has waited too long"),
    _("leased, and nothing runs"),
    _("leased, and the device is gone"),
    _("Name 1 to %(MOST_PARAMETERS)s parameters."),
    _("Name one of %(names)s."),
    _("No node has devices of type %(types)s."),
    _("of type %(kind)s"),
    _("of type %(type)s"),
    _("on pinned cell %(pinned_cell)s"),
    _("pid %(pid)s"),
    _("preempting"),
    _("preemption"),
    _("prepared"),
    _("preparing"),
    _("queued"),
    _("ready"),
    _("refuse jobs whose deadline cannot be kept"),
    _("reservations at most, with all"),
    _("reserved"),
    _("restart costs count so many times"),
    _("Run it guaranteed, or leave the pinned cell out."),
    _("runs without a lease"),
    _("seconds between changes of size"),
    _("start"),
    _("starting"),
    _("stop"),
    _("stopped"),
    _("stopping"),
    _("Submit it without a pinned cell."),
    _("succeeded"),
    _("the cluster"),
    _("the device is gone"),
    _("The grid has %(total)s points."),
    _("the image"),
    _("the job's own error"),
    _("the node does not answer"),
    _("the node has not answered for a while"),
    _("the node has restarted since"),
    _("the nodes"),
    _("the platform"),
    _("the rounds"),
    _("the time limit"),
    _("There is no such field in the job."),
    _("There is no such node."),
    _("There is no such round, or it is too old to be kept."),
    _("There is no virtual cluster %(vc)s."),
    _("up to so many jobs, admission looks at all ways"),
    _("Use a type of the virtual cluster, or run it opportunistically."),
    _("Use is not summed up by this."),
    _("Use letters, digits and underscores, a letter first."),
    _("Use one of %(by_type)s."),
    _("Use one of: %(GROUPS)s."),
    _("Use one of: %(known)s."),
    _("using"),
    _("Virtual cluster %(vc)s has no pinned cell %(pinned)s."),
    _("Virtual cluster %(vc)s is guaranteed no devices of type %(types)s."),
    _("waiting"),
    _("what is left and lent goes to jobs that can be preempted"),
    _("whose start nobody may put off"),
    _("work counts so many times"),
    _("Write a line LR = 0.1, 0.01 for each parameter."),
    _("%(names)s and more"),
    _("It was stopped."),
    _("no healthy device"),
    _("no healthy device: %(noticed)s"),
    _("%(devices)s in one pcie"),
    _("%(devices)s in one socket"),
    _("%(devices)s in one node"),
    _("%(devices)s in one rack"),
    _("%(devices)s in one pcie each"),
    _("%(devices)s in one socket each"),
    _("%(devices)s in one node each"),
    _("in one pcie each"),
    _("in one socket each"),
    _("in one node each"),
    _("%(wanted)s on pinned cell %(pinned_cell)s"),
    _("%(one)s or %(other)s"),
    _("Round %(number)s gave it %(devices)s on %(nodes)s"),
    _(
        "Its devices have been busy for less than %(below)s %% of the time for %(minutes)s "
        "minutes."
    ),
    _("It is stopped at %(time)s UTC if that goes on."),
    _(
        "Its virtual cluster's guarantee does not cover it any more; it runs on, borrowing "
        "its devices, and gives them back when somebody is entitled to them"
    ),
    _("Its virtual cluster's guarantee covers it again"),
    _(
        "Rule %(rule)s is not looked for in what %(member)s on %(node)s writes from byte "
        "%(offset)s on: its pattern takes too long there."
    ),
    _("Make it simpler."),
    _(
        "Its batch is %(batch)s samples in %(parts)s of each device instead of %(before)s: "
        "%(gain)s more goodput is expected."
    ),
    _("one pass"),
    _("%(passes)s passes"),
    _("Its cells have changed and keep their shape while jobs hold devices."),
    _("Its cells have changed and keep their shape: %(fault)s."),
    _("The imported topology of %(node)s does not have its devices %(extra)s."),
    _("It is no gang: its %(count)s instances are jobs that start and end by themselves."),
    _("images: ignore is set here, so %(roles)s runs as a plain process without its image."),
    _("%(jobs)s job is still on %(node)s."),
    _("%(jobs)s jobs are still on %(node)s."),
    _("The days cannot be simulated: %(error)s"),
    _("It failed with %(error)s."),
    _("the drain of %(node)s"),
    _("It waited in no round of late whose snapshot is stored."),
    _("There is no such token."),
    _("This is not a number that can be used here."),
    _("Checkpoint of step %(step)s saved, %(sha256)s."),
    _("Checkpoint of step %(step)s saved"),
    _("the job ended with exit code %(code)s"),
    _("%(whole)s starting"),
    _("%(whole)s admitted"),
    _("%(whole)s suspect"),
    _("%(whole)s preempting"),
    _("%(whole)s stopping"),
    _("%(whole)s of %(leaf_count)s"),
    _("%(whole)s of them lent"),
)
