"""Messages of the dstack importer."""

from typing import Final

from scheduling.compat.messages import SHARED, Messages
from tessera.messages import fixed

TABLE: Final = Messages(
    SHARED,
    {
        "dstack-fleet-kind": fixed("dstack fleet"),
        "dstack-service": fixed("is a service; only tasks are supported."),
        "dstack-dev-environment": fixed("is a dev environment; only tasks are supported."),
        "dstack-volume": fixed("is a volume; only tasks are supported."),
        "dstack-gateway": fixed("is a gateway; only tasks are supported."),
        "dstack-python": fixed(
            "The job uses the Python of the node or image; dstack's own images are not used."
        ),
        "dstack-idle-policy-incomplete": fixed(
            "It sets no utilization or no time window, so the job has no idle policy."
        ),
        "dstack-window-short": fixed(
            "is too short; the job is stopped after %(minutes)s minutes at the earliest."
        ),
        "dstack-no-capacity": fixed(
            "does not include no-capacity; the job waits for devices in any case."
        ),
        "dstack-retry-error": fixed("includes error; the job is retried at most %(most)s times."),
        "dstack-login": fixed("Only a user and a password in plain text are supported."),
        "dstack-shell": fixed("Commands run with sh or bash."),
        "dstack-retry-duration": fixed("A number of attempts limits retries, not a duration."),
        "dstack-event": fixed("Unknown event."),
        "dstack-repo-path": fixed("The repository is the working directory."),
        "dstack-repos": fixed(
            "Only one git repository is fetched; upload other files as an archive."
        ),
        "dstack-images": fixed("dstack's own images are not used."),
        "dstack-not-a-task": fixed("is not task; only tasks are supported."),
        "dstack-write-task": fixed("Write type: task."),
        "dstack-not-a-fleet": fixed("is not a valid fleet name."),
        "dstack-write-fleet": fixed("Write the name of a fleet."),
        "dstack-stop-off": fixed("is off; the job has at most 1 hour to save its work."),
        "dstack-branch": fixed("is ignored, because hash is set."),
        "dstack-placement": fixed(
            "The cells of the cluster define which nodes are close to each other."
        ),
        "dstack-node-env": fixed("Nodes have no environment variables."),
        "dstack-no-ssh": fixed("is missing: only fleets of SSH hosts become nodes."),
        "dstack-give-ssh": fixed("Give ssh_config with hosts."),
        "dstack-by-type": fixed("Devices are selected by type only."),
        "dstack-write-gpu": fixed(
            "Write A100:80GB:8, a count, or an object with name, count and memory."
        ),
        "dstack-gpu-range": fixed("is a range; the job gets the minimum of %(devices)s."),
        "dstack-not-gpus": fixed("is not a valid GPU specification."),
        "dstack-cpu-arch": fixed("Nodes are not selected by CPU architecture."),
        "dstack-not-a-gpu": fixed("is not a valid GPU name."),
        "dstack-write-gpu-name": fixed("Write a name such as A100."),
        "dstack-gpu-part": fixed("has a part that is not a name, a size or a count."),
        "dstack-cloud": fixed("It selects cloud offers; jobs run on the nodes of this cluster."),
        "dstack-files": fixed("Local files are not copied; upload an archive."),
        "dstack-ports": fixed("Ports are not forwarded to the client."),
        "dstack-privileged": fixed("Privileged containers are not supported."),
        "dstack-docker": fixed("Containers have no container engine inside."),
        "dstack-user": fixed("The command runs as the default user of the node or image."),
        "dstack-entrypoint": fixed(
            "The entry point of the image is not replaced; write the program in commands."
        ),
        "dstack-home": fixed("The home directory cannot be changed."),
        "dstack-single-branch": fixed("All branches are fetched."),
        "dstack-schedule": fixed("Scheduled starts are not supported; a job starts once."),
        "dstack-stop-criteria": fixed("The job succeeds when all nodes succeed."),
        "dstack-startup-order": fixed("All nodes start together."),
        "dstack-groups": fixed(
            "All nodes have the same resources; write one role for each group."
        ),
        "dstack-setup": fixed("Write it in commands."),
        "dstack-model": fixed("Only tasks are supported."),
    },
)
phrase = TABLE.phrase
