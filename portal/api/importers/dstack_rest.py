"""The keys of a dstack task that have no counterpart, each with what that means for the job."""

from typing import Final

from portal.api.importers.reading import Section

_CLOUD: Final = "It chooses among offers of clouds; here the cluster's own nodes are used."
_KEYS: Final[dict[str, tuple[bool, str]]] = {
    "backends": (False, _CLOUD),
    "regions": (False, _CLOUD),
    "availability_zones": (False, _CLOUD),
    "instance_types": (False, _CLOUD),
    "instances": (True, "Jobs do not choose nodes; pinned cells are for that."),
    "reservation": (False, _CLOUD),
    "spot_policy": (False, _CLOUD),
    "max_price": (False, _CLOUD),
    "creation_policy": (False, _CLOUD),
    "idle_duration": (False, _CLOUD),
    "termination_policy": (False, _CLOUD),
    "termination_idle_time": (False, _CLOUD),
    "pool_name": (False, _CLOUD),
    "backend_options": (False, _CLOUD),
    "volumes": (True, "Volumes are not mounted."),
    "files": (True, "Files of the machine that submits do not come along; upload an archive."),
    "ports": (False, "Ports are not forwarded to the machine that submits."),
    "privileged": (True, "Containers get no rights over the node."),
    "docker": (True, "There is no engine inside containers."),
    "user": (True, "The command runs as the node's or the image's own user."),
    "entrypoint": (True, "The image's entry point is not changed; write the program in commands."),
    "home_dir": (True, "The home directory is not changed."),
    "single_branch": (False, "The whole repository is fetched."),
    "schedule": (True, "Jobs start once, not by the clock."),
    "stop_criteria": (True, "The job succeeds when all nodes have."),
    "startup_order": (True, "All nodes start together."),
    "groups": (True, "All nodes are alike; write one role for each group."),
    "setup": (True, "Put it into commands."),
    "model": (True, "Only tasks can be run."),
}
_HARMLESS: Final[dict[str, object]] = {"stop_criteria": "all-done", "startup_order": "any"}


def report_rest(top: Section) -> None:
    """Report the keys that are known and have no counterpart."""
    for key, value in _HARMLESS.items():
        if top.peek(key) == value:
            top.take(key)
    for key, (needed, words) in _KEYS.items():
        top.lacks(key, words, needed=needed)
