"""Shapes of what the importer of OpenPAI's jobs says of a document."""

from typing import Final

from django.utils.translation import gettext_noop as _

OPENPAI: Final = (
    _("A preempted job leaves after its grace period."),
    _("Add it to prerequisites, or correct the name."),
    _("asks for no port and was left out."),
    _("contradicts skuNum %(number)s."),
    _("counts only where tasks start one by one; a gang is retried as a whole."),
    _(
        "Credentials of registries are not translated: write them as a secret of the role, "
        "user:password, and its name as image_secret."
    ),
    _("Define it, or leave it out."),
    _("Devices of a gang are always released together."),
    _("differs between task roles, and the tasks of a job share one number here."),
    _("excludes skuType."),
    _("Give a list of uris."),
    _("Give both the same skuType and pinnedCellId."),
    _("has no text to fill in."),
    _("has several affinity groups; the job is one gang here."),
    _("InfiniBand devices are not given to containers."),
    _("is %(devices)s, but %(reserved)s devices are reserved by skuNum."),
    _("is 0; one device is reserved, since roles without do not work yet."),
    _("is also the affinity group of %(name)s, with another type or pinned cell."),
    _("is called %(name)s here; PAI_* variables keep the old name."),
    _(
        "is false: each task is a job here, which starts, ends and is retried by itself; the "
        "failure of one does not end the others."
    ),
    _("is no prerequisite of type %(kind)s."),
    _("is no task role of this job."),
    _("is no type of prerequisite."),
    _("is not a job."),
    _("is not a priority class."),
    _("is not a reference."),
    _("is not among the deployments."),
    _("is not declared, but commands read it: one port is added, as OpenPAI does."),
    _("is not given; default is used, as OpenPAI does."),
    _("is not the name of a task role."),
    _("is not the version that can be read."),
    _("is used by no command."),
    _("It is for people only and was left out."),
    _("It has no plugin, so that nothing runs for it, as in OpenPAI."),
    _("Its commands do not run; put them into commands."),
    _("Jobs have no ssh server of their own."),
    _("Keep skuType or pinnedCellId."),
    _("Name what it requires before it in the role."),
    _("names several prerequisites; what the last of them has counts, as in OpenPAI."),
    _("names no task role."),
    _("Only what runs when a task starts has a counterpart."),
    _("Plugins of the runtime do not run here."),
    _("Put the secret into a variable on a line of its own before, and use that."),
    _("reads each secret from a file, as one word; no command line shows it."),
    _("Refer to a text or a number."),
    _("refers to a secret that is not defined."),
    _("refers to something that is not defined."),
    _("run right before the commands, in the same shell."),
    _("Team storage is not mounted."),
    _("TensorBoard is not started."),
    _("The commands after one that fails run all the same."),
    _("The plugin does not run here."),
    _("There is no other scheduler that suggests nodes."),
    _("uses a secret after a here-document, in backticks or after a backslash."),
    _("was cut after %(most)s characters."),
    _("Write 2."),
    # xgettext:no-python-format
    _("Write <% $parameters.name %> or another reference to something that is defined."),
    _("Write job."),
    _("Write letters, digits and _."),
    _("Write the same number everywhere, or submit the roles as several jobs."),
)
