"""Messages of the OpenPAI importer."""

from typing import Final

from scheduling.compat.messages import SHARED, Messages
from tessera.messages import fixed

TABLE: Final = Messages(
    SHARED,
    {
        "openpai-ignored": fixed("It has no effect on the job."),
        "openpai-tensorboard": fixed("TensorBoard is not started."),
        "openpai-descriptive": fixed("It is descriptive only."),
        "openpai-no-role": fixed("has no task role."),
        "openpai-version": fixed("is not a supported protocol version."),
        "openpai-write-version": fixed("Write 2."),
        "openpai-not-a-job": fixed("is not a job."),
        "openpai-write-job": fixed("Write job."),
        "openpai-default-cluster": fixed("is not set; the job uses default, as in OpenPAI."),
        "openpai-note-cut": fixed("is truncated to %(most)s characters."),
        "openpai-no-gang": fixed(
            "is false: each task becomes a job that starts, ends and is retried on its own; if "
            "one fails, the others continue."
        ),
        "openpai-retries-differ": fixed(
            "differs between task roles; the tasks of a job share one number."
        ),
        "openpai-write-same-retries": fixed(
            "Write the same number for each role, or submit the roles as separate jobs."
        ),
        "openpai-no-deployment": fixed("is not one of the deployments."),
        "openpai-define-deployment": fixed("Define it, or remove it."),
        "openpai-plugin": fixed("This runtime plugin is not supported."),
        "openpai-parameter-unused": fixed("is used by no command."),
        "openpai-not-a-role-name": fixed("is not a valid name for a task role."),
        "openpai-write-role-name": fixed("Write letters, digits and _."),
        "openpai-role-renamed": fixed(
            "becomes role %(name)s; PAI_* variables contain the old name."
        ),
        "openpai-not-a-role": fixed("is not a task role of this job."),
        "openpai-ssh": fixed("Jobs have no SSH server."),
        "openpai-storage": fixed("Team storage without storageConfigNames is not mounted."),
        "openpai-cmd": fixed("Its commands do not run; write them in commands."),
        "openpai-not-a-class": fixed("is not a valid priority class."),
        "openpai-write-one-of": fixed("Write one of %(names)s."),
        "openpai-pinned-and-type": fixed("cannot be combined with skuType."),
        "openpai-keep-type-or-pinned": fixed("Use either skuType or pinnedCellId."),
        "openpai-sku-differs": fixed("contradicts skuNum %(number)s."),
        "openpai-gang-release": fixed("Devices of a gang are always released together."),
        "openpai-lazy-preemption": fixed(
            "A preempted job releases its devices after its grace period."
        ),
        "openpai-suggested-nodes": fixed("No other scheduler suggests nodes."),
        "openpai-groups": fixed("has several affinity groups; the whole job is one gang."),
        "openpai-group-differs": fixed(
            "is also the affinity group of %(name)s, with another type or pinned cell."
        ),
        "openpai-give-same-type": fixed("Give both the same skuType and pinnedCellId."),
        "openpai-usual-port": fixed(
            "is not declared, but commands read it; the role gets one port, as in OpenPAI."
        ),
        "openpai-runtime-plugin": fixed("Runtime plugins are not supported."),
        "openpai-nothing-to-run": fixed(
            "It has no plugin, so nothing runs for it, as in OpenPAI."
        ),
        "openpai-prerequisite-shared": fixed(
            "is the name of several prerequisites; the last one is used, as in OpenPAI."
        ),
        "openpai-require": fixed("Write the required prerequisites before it in the role."),
        "openpai-failure-policy": fixed("If a command fails, the next commands run anyway."),
        "openpai-callback": fixed("Only the event taskStarts is supported."),
        "openpai-credentials": fixed(
            "Registry credentials are not translated: write them as a secret of the role, "
            "user:password, and its name as image_secret."
        ),
        "openpai-give-uris": fixed("Give a list of uris."),
        "openpai-starts": fixed("run before the commands, in the same shell."),
        "openpai-not-a-prerequisite": fixed("is not a prerequisite of type %(kind)s."),
        "openpai-add-prerequisite": fixed("Add it to prerequisites, or correct the name."),
        "openpai-not-a-prerequisite-type": fixed("is not a valid type of prerequisite."),
        "openpai-task-retries": fixed(
            "applies only to jobs with gangAllocation: false; a gang is retried as a whole."
        ),
        "openpai-infiniband": fixed("A job of 1 instance gets no InfiniBand devices."),
        "openpai-gpus-differ": fixed(
            "is %(devices)s; the job reserves %(reserved)s devices (skuNum)."
        ),
        "openpai-no-gpu": fixed(
            "is 0; the role reserves 1 device. Roles without devices need cpu, memoryMB and a "
            "gang with GPUs, or a node with CPUs that belong to no device."
        ),
        "openpai-secrets": fixed(
            "The command reads each secret from a file, as one word; no command line shows it."
        ),
        "openpai-no-port": fixed("requests 0 ports and is ignored."),
        # xgettext:no-python-format
        "openpai-write-reference": fixed(
            "Write <% $parameters.name %> or another reference to a defined value."
        ),
        "openpai-not-a-reference": fixed("is not a valid reference."),
        "openpai-undefined": fixed("refers to a value that is not defined."),
        "openpai-secret-undefined": fixed("refers to a secret that is not defined."),
        "openpai-secret-place": fixed(
            "uses a secret after a here-document, in backticks or after a backslash."
        ),
        "openpai-secret-in-variable": fixed(
            "Assign the secret to a variable on an earlier line, and use the variable."
        ),
    },
)
phrase = TABLE.phrase
