"""Shapes of what the importer of SkyPilot's tasks says of a document."""

from typing import Final

from django.utils.translation import gettext_noop as _

SKYPILOT: Final = (
    _("A preempted job starts again by itself."),
    _("Alternatives differ in their devices only."),
    _("Alternatives must ask for the same number of devices; the first one counts."),
    _("are read from files into variables of the same names."),
    _("asks for %(count)s; devices are whole, so that %(devices)s are reserved."),
    _("becomes class opportunistic: idle devices, until wanted."),
    _("Buckets are not mounted."),
    _("Containers are not started with further options of docker."),
    _("Data is not moved for a task."),
    _("Devices are free as soon as the job ends."),
    _("Every alternative names its own."),
    _("Files and buckets are not mounted; upload an archive as the source."),
    _("Files of the machine that submits do not come along; upload them as an archive."),
    _("is no accelerator."),
    _("is no image."),
    _("is no name of a pool."),
    _("is no number of accelerators."),
    _("is no number of CPUs."),
    _("It chooses among clouds; here the cluster's own nodes are used."),
    _("It sets SkyPilot itself."),
    _("It sets up accelerators of a cloud."),
    _("It was left out; people choose their own notifications."),
    _("Nothing runs in pods here, so that none is set up."),
    _("Only container images can be run, not images of a cloud."),
    _("Pools of workers are not kept."),
    _("Ports are not opened to the outside."),
    _("Retries do not look at exit codes; any error of the command counts."),
    _("runs on every node at each start of the job, right before run."),
    _("Services that answer requests cannot be run, only the task itself."),
    _("Write 1 to 256."),
    _("Write 4 or 4+."),
    _("Write docker:NAME."),
    _("Write H100:8."),
)
