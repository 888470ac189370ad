"""Messages of the Slurm importer."""

from typing import Final

from scheduling.compat.messages import SHARED, Messages
from tessera.messages import fixed

TABLE: Final = Messages(
    SHARED,
    {
        "slurm-qos-kind": fixed("Slurm quality of service"),
        "slurm-account-kind": fixed("Slurm account"),
        "slurm-partition-kind": fixed("Slurm partition"),
        "slurm-mail-dependency": fixed(
            "No mail is sent when a dependency can never be met; the job page shows it."
        ),
        "slurm-mail-stage": fixed("Data is not staged."),
        "slurm-mail-time": fixed("No mail is sent before the time limit."),
        "slurm-mail-tasks": fixed("Each task is a job, and mails are sent for each job."),
        "slurm-mail-without-type": fixed(
            "Without --mail-type, Slurm sends no mail; you get the mails that you selected in "
            "the portal."
        ),
        "slurm-mail-limit": fixed("TIME_LIMIT becomes a mail when the job fails."),
        "slurm-mail-members": fixed("These members of the tenant also get mails."),
        "slurm-mail-unknown": fixed("Unknown mail type."),
        "slurm-mail-address": fixed(
            "Mails go to the addresses in user profiles; write user names."
        ),
        "slurm-dependency": fixed(
            "Only afterok is supported, and only if all conditions must be met."
        ),
        "slurm-moment": fixed(
            "Only ISO 8601 times, times of day and now+COUNTunit are supported."
        ),
        "slurm-array-held": fixed("All tasks are on hold; each runs when it is released."),
        "slurm-array-throttle": fixed(
            "becomes a sweep that runs at most %(jobs)s jobs at a time."
        ),
        "slurm-utc": fixed("is read as a time in UTC."),
        "slurm-late-option": fixed(
            "It is below the first command, where Slurm does not read it either."
        ),
        "slurm-no-shebang": fixed(
            "is not a #! line, which sbatch requires; the script runs with bash."
        ),
        "slurm-other-scheduler": fixed("Options of other schedulers are not read."),
        "slurm-open-quote": fixed("has a quote that is not closed."),
        "slurm-close-quote": fixed("Close it with %(quote)s."),
        "slurm-no-value": fixed("gives no value for %(option)s."),
        "slurm-write-value": fixed("Write a value after it."),
        "slurm-unknown-option": fixed("--%(name)s is not an option of sbatch."),
        "slurm-option-twice": fixed("is given twice; line %(line)s is used, as in Slurm."),
        "slurm-hetjob": fixed("starts a heterogeneous job, which is not supported."),
        "slurm-write-roles": fixed("Write a job specification with one role for each part."),
        "slurm-not-an-option": fixed("has %(word)s, which is not an option."),
        "slurm-write-option": fixed("Options begin with --."),
        "slurm-output": fixed("The portal stores the log; no file is written."),
        "slurm-error": fixed("The portal stores the log, including errors; no file is written."),
        "slurm-open-mode": fixed("The portal stores the logs of all attempts."),
        "slurm-exclusive": fixed(
            "Devices are never shared; other jobs may use the rest of the node."
        ),
        "slurm-exclude": fixed("Jobs cannot exclude nodes; a retry avoids a node that failed."),
        "slurm-nodefile": fixed("Jobs cannot choose nodes."),
        "slurm-licenses": fixed("Licences are not counted."),
        "slurm-container-name": fixed("A container exists only while its job runs."),
        "slurm-container-save": fixed("Containers are not saved."),
        "slurm-container-home": fixed("Home directories are not mounted into containers."),
        "slurm-container-writable": fixed("Containers are writable."),
        "slurm-oci": fixed("OCI bundles are not supported; write --container-image."),
        "slurm-input": fixed("The standard input of jobs is empty."),
        "slurm-export-file": fixed("The values are not in the script; write --export=NAME=VALUE."),
        "slurm-time-min": fixed("The time limit is not shortened to start earlier."),
        "slurm-clusters": fixed("The portal has one cluster."),
        "slurm-no-features": fixed("Nodes have no features."),
        "slurm-invalid-dependency": fixed(
            "A job whose dependency can never be met waits; its page shows the reason."
        ),
        "slurm-oversubscribe": fixed("Devices are not shared."),
        "slurm-contiguous": fixed("Write --switches=1 to use nodes of one rack."),
        "slurm-burst-buffers": fixed("Burst buffers are not supported."),
        "slurm-write-gpus-per-node": fixed("Write --gpus-per-node."),
        "slurm-write-ntasks-per-node": fixed("Write --ntasks-per-node."),
        "slurm-write-per-task": fixed("Write --gpus-per-task and --cpus-per-task."),
        "slurm-uid": fixed("Jobs run as the user who submits them."),
        "slurm-no-kill": fixed("A gang ends as a whole if it loses a node."),
        "slurm-reboot": fixed("Nodes are not rebooted for a job."),
        "slurm-client-option": fixed("It is an option for the sbatch command, not for the job."),
        "slurm-tuning": fixed("It configures Slurm's own daemons."),
        "slurm-runs-on-every-node-steps": fixed(
            "runs on every node; Slurm runs it only on the first one. Each srun starts the "
            "tasks of its own node. Write srun -N1 -n1 before a command that must run once; "
            "other nodes do not wait for it."
        ),
        "slurm-runs-on-every-node": fixed(
            "runs on every node; Slurm runs it only on the first one. Do work that must happen "
            "once only if SLURM_NODEID is 0; other nodes do not wait for it."
        ),
        "slurm-signal-after-term": fixed(
            "is sent when the job is preempted or stopped, after a SIGTERM to its other processes."
        ),
        "slurm-wrap-and-script": fixed("cannot be combined with a script."),
        "slurm-signal-term-only": fixed(
            "The notice of a preemption or stop is SIGTERM to all processes of the job."
        ),
        "slurm-switches-one": fixed("Only 1 (a single rack) is supported."),
        "slurm-mpirun": fixed(
            "mpirun would start on every node; use srun to start one process on each node."
        ),
        "slurm-signal-any-time": fixed(
            "is sent when the job is preempted or stopped, at any time."
        ),
        "slurm-reservation": fixed("is read as the name of a pinned cell."),
        "slurm-one-rack": fixed("is read as: all nodes in one rack."),
        "slurm-srun": fixed("calls srun, which starts its tasks on this node without Slurm."),
        "slurm-program-needed": fixed(
            "calls %(program)s, which must exist on the nodes or in the image."
        ),
        "slurm-program-missing": fixed("The script calls %(program)s, which is not on the nodes."),
        "slurm-tmpdir": fixed("uses SLURM_TMPDIR, which is not set; use TMPDIR."),
        "slurm-variables-unset": fixed("uses %(names)s, which jobs do not have."),
        "slurm-not-a-path": fixed("is not a valid path."),
        "slurm-write-path": fixed("Write a path on one line."),
        "slurm-pinned-type": fixed("has a device type; the pinned cell has its own."),
        "slurm-export-all": fixed("Variables of the submitting shell are not copied."),
        "slurm-export-nil": fixed("is NIL; the variables of the job are set anyway."),
        "slurm-export-none": fixed("is NONE; no job gets variables of the submitting shell."),
        "slurm-export-value": fixed("The value is not in the script; write NAME=VALUE."),
        "slurm-write-commands": fixed("Write the commands below the options."),
        "slurm-features": fixed("The device type is the only feature of a node."),
        "slurm-several-types": fixed(
            "requests several GPU types on one node; a role has one type."
        ),
        "slurm-resource": fixed("Unknown resource."),
        "slurm-ask-one-type": fixed("Request one type."),
        "slurm-tasks-without-nodes": fixed("is given without --nodes; all tasks run on one node."),
        "slurm-not-divisible": fixed("cannot be divided evenly among %(nodes)s nodes."),
        "slurm-gpus-differ": fixed("requests another number of GPUs per node than %(option)s."),
        "slurm-memory-all": fixed(
            "is 0 (all memory of the node); the job gets the share of its devices."
        ),
        "slurm-memory-options": fixed("cannot be combined with the other memory options."),
        "slurm-gpus-without-nodes": fixed("is given without --nodes; all GPUs are on one node."),
        "slurm-use-gpus-per-node": fixed("Use --gpus-per-node."),
        "slurm-step-image": fixed(
            "Steps run in the same environment as the script; write --container-image as an "
            "option of the job."
        ),
        "slurm-step-container": fixed(
            "Steps run in the same environment as the script, not in a separate container."
        ),
        "slurm-step-directory": fixed("Steps start in the directory of the script; write cd."),
        "slurm-step-programs": fixed("All tasks of a step run the same program."),
        "slurm-step-mpi": fixed(
            "Tasks have no PMI server; MPI programs cannot find each other through it."
        ),
        "slurm-step-output": fixed("The portal stores the log of all steps; no file is written."),
        "slurm-step-devices": fixed(
            "Steps that run in parallel all see all devices of their node."
        ),
        "slurm-not-a-time": fixed("is not a valid Slurm time."),
        "slurm-write-time": fixed("Write minutes, 2:30:00 or 1-12:00:00."),
        "slurm-not-memory": fixed("is not a valid amount of memory."),
        "slurm-write-memory": fixed("Write 4000 (megabytes), 4G or 1T."),
        "slurm-not-nodes": fixed("is not a valid number of nodes."),
        "slurm-write-nodes": fixed("Write a number or a range such as 2-4."),
        "slurm-nodes-out-of-range": fixed("must be a range within 1..1000, smaller number first."),
        "slurm-write-node-range": fixed("Write a range such as 2-4."),
        "slurm-not-a-count": fixed("is not a valid count."),
        "slurm-write-count": fixed("Write a whole number from 1 to %(most)s."),
        "slurm-array-too-long": fixed("has more than %(most)s tasks."),
        "slurm-submit-in-parts": fixed("Submit it in parts."),
        "slurm-not-a-signal": fixed("is not a valid signal."),
        "slurm-write-signal": fixed("Write B:USR1@120."),
        "slurm-not-gpus": fixed("is not a valid number of GPUs."),
        "slurm-write-gpus": fixed("Write 4 or a100:4."),
        "slurm-not-gres": fixed("is not a valid list of resources."),
        "slurm-write-gres": fixed("Write gpu:4 or gpu:a100:4."),
        "slurm-not-an-array": fixed("is not a valid array."),
        # xgettext:no-python-format
        "slurm-write-array": fixed("Write 0-9, 1,3,5 or 0-15:4, with %2 if wanted."),
        "slurm-array-range": fixed("has its larger number first, or more than %(most)s tasks."),
        "slurm-write-smaller-range": fixed("Write a smaller range."),
        "slurm-not-a-job": fixed("is not a job of this cluster."),
        "slurm-write-dependency": fixed("Write afterok:NUMBER."),
    },
)
phrase = TABLE.phrase
