"""Messages of the SkyPilot importer."""

from typing import Final

from scheduling.compat.messages import SHARED, Messages
from tessera.messages import fixed

TABLE: Final = Messages(
    SHARED,
    {
        "skypilot-infra-kind": fixed("SkyPilot infra"),
        "skypilot-settings": fixed("It configures SkyPilot itself."),
        "skypilot-workdir": fixed("Local files are not copied; upload them as an archive."),
        "skypilot-file-mounts": fixed(
            "Only storages by name are mounted; upload files as the source archive."
        ),
        "skypilot-buckets": fixed("Buckets are not mounted."),
        "skypilot-service": fixed("Services are not supported; only the task runs."),
        "skypilot-pool": fixed("Worker pools are not supported."),
        "skypilot-data": fixed("Data is not copied for a task."),
        "skypilot-callback": fixed("Each user chooses notifications in the portal."),
        "skypilot-kubernetes": fixed("Jobs do not run in pods."),
        "skypilot-docker-options": fixed("Containers start without further docker options."),
        "skypilot-secrets": fixed(
            "The command reads them from files into variables of the same names."
        ),
        "skypilot-setup": fixed("runs on every node before run, each time the job starts."),
        "skypilot-not-a-pool": fixed("is not a valid pool name."),
        "skypilot-cloud": fixed("It selects a cloud; jobs run on the nodes of this cluster."),
        "skypilot-exit-codes": fixed(
            "Retries do not depend on the exit code; any error of the command counts."
        ),
        "skypilot-ports": fixed("Ports are not opened to the outside."),
        "skypilot-autostop": fixed("The job releases its devices when it ends."),
        "skypilot-accelerator-args": fixed("It configures cloud accelerators."),
        "skypilot-recovery": fixed("A preempted job is requeued automatically."),
        "skypilot-image-kind": fixed(
            "Only container images are supported, not images of a cloud."
        ),
        "skypilot-spot": fixed(
            "The job becomes opportunistic: it uses idle devices and may be preempted."
        ),
        "skypilot-not-an-image": fixed("is not a valid image."),
        "skypilot-write-image": fixed("Write docker:NAME."),
        "skypilot-alternative-own": fixed("Each alternative has its own accelerators."),
        "skypilot-not-an-accelerator": fixed("is not a valid accelerator."),
        "skypilot-write-accelerator": fixed("Write a name with a count, such as H100:8."),
        "skypilot-alternative-count": fixed(
            "Alternatives must have the same number of devices; the first one is used."
        ),
        "skypilot-whole-devices": fixed(
            "requests %(count)s; the job reserves %(devices)s, because devices are allocated "
            "whole."
        ),
        "skypilot-not-cpus": fixed("is not a valid number of CPUs."),
        "skypilot-write-cpus": fixed("Write 4 or 4+."),
        "skypilot-alternative-differs": fixed("Alternatives differ only in their devices."),
        "skypilot-not-a-count": fixed("is not a valid number of accelerators."),
        "skypilot-write-count": fixed("Write a number from 1 to 256."),
    },
)
phrase = TABLE.phrase
