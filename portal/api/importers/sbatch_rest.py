"""The ``sbatch`` options that have no counterpart, each with what that means for the job."""

from typing import Final

from portal.api.importers.reading import Section

# (needed, what it means): whether the job would not do the same without the option.
_REST: Final[dict[str, tuple[bool, str]]] = {
    "output": (False, "The portal keeps the log; no file is written."),
    "error": (False, "The portal keeps the log, with errors in it; no file is written."),
    "open-mode": (False, "The portal keeps the logs of all attempts."),
    "exclusive": (False, "Devices are never shared; others may use the rest of the node."),
    "nodelist": (True, "Jobs do not choose nodes; pinned cells are for that."),
    "exclude": (True, "Jobs do not exclude nodes; a node that failed is avoided in a retry."),
    "nodefile": (True, "Jobs do not choose nodes."),
    "licenses": (True, "Licences are not counted here."),
    "container-mounts": (True, "Directories of nodes are not mounted into containers."),
    "container-name": (True, "A container lives as long as the job."),
    "container-save": (True, "Containers are not saved."),
    "container-mount-home": (True, "Home directories are not mounted into containers."),
    "container-writable": (False, "Containers can be written to."),
    "container": (True, "OCI bundles are not run; write --container-image."),
    "input": (True, "The standard input of jobs is empty."),
    "export-file": (True, "Its variables are not in the script; write --export=NAME=VALUE."),
    "time-min": (False, "The time limit is not shortened to start earlier."),
    "nice": (False, "Priority comes from the class of the job."),
    "priority": (False, "Priority comes from the class of the job."),
    "clusters": (False, "There is one cluster here."),
    "prefer": (False, "Nodes have no features here."),
    "tmp": (False, "Space on disks is not reserved."),
    "kill-on-invalid-dep": (False, "A job whose condition cannot come true waits, and says so."),
    "oversubscribe": (False, "Devices are not shared."),
    "contiguous": (False, "Write --switches=1 to keep nodes together."),
    "bb": (True, "There are no burst buffers here."),
    "bbf": (True, "There are no burst buffers here."),
    "gpus-per-socket": (True, "Write --gpus-per-node."),
    "ntasks-per-gpu": (True, "Write --ntasks-per-node."),
    "tres-per-task": (True, "Write --gpus-per-task and --cpus-per-task."),
    "uid": (True, "Jobs run as the person who submits them."),
    "gid": (True, "Jobs run as the person who submits them."),
    "no-kill": (True, "A gang ends as a whole when it loses a node."),
    "reboot": (True, "Nodes are not started anew for a job."),
}
# What is for the program sbatch and says nothing about the job.
_CLIENT: Final = [
    "parsable",
    "quiet",
    "verbose",
    "wait",
    "test-only",
    "help",
    "usage",
    "version",
    "ignore-pbs",
    "get-user-env",
]
# How processes, memory and clocks are bound on a node.
_TUNING: Final = [
    "acctg-freq",
    "batch",
    "cluster-constraint",
    "core-spec",
    "cores-per-socket",
    "cpu-freq",
    "delay-boot",
    "distribution",
    "extra",
    "extra-node-info",
    "gpu-bind",
    "gpu-freq",
    "gres-flags",
    "hint",
    "mcs-label",
    "mem-bind",
    "network",
    "ntasks-per-core",
    "ntasks-per-socket",
    "oom-kill-step",
    "overcommit",
    "profile",
    "propagate",
    "resv-ports",
    "segment",
    "sockets-per-node",
    "spread-job",
    "stepmgr",
    "thread-spec",
    "threads-per-core",
    "tres-bind",
    "use-min-nodes",
    "wait-all-nodes",
    "wckey",
]


def report_client_options(given: Section) -> None:
    """Report the options that only say how ``sbatch`` itself behaves."""
    for name in _CLIENT:
        given.lacks(f"--{name}", "It is for the sbatch command, not for the job.", needed=False)


def report_rest(given: Section) -> None:
    """Report the options that are known and have no counterpart."""
    if given.peek("--input") == "/dev/null":
        given.take("--input")
    for name, (needed, words) in _REST.items():
        given.lacks(f"--{name}", words, needed=needed)
    for name in _TUNING:
        given.lacks(f"--{name}", "It tunes Slurm's own daemons; it was left out.", needed=False)
