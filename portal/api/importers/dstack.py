"""dstack tasks: a YAML document becomes a job; fleets of SSH hosts become a list of nodes."""

import re
from collections.abc import Mapping
from typing import Any, Final

from portal.api.importers.amounts import OFF, read_seconds
from portal.api.importers.checking import Paths, finish_translation
from portal.api.importers.context import Context, Named, standing
from portal.api.importers.documents import parse_document
from portal.api.importers.dstack_fleets import read_fleet
from portal.api.importers.dstack_resources import read_resources
from portal.api.importers.dstack_rest import report_rest
from portal.api.importers.images import read_image
from portal.api.importers.reading import Report, Section
from portal.api.importers.result import Imported
from portal.api.importers.scripts import BASH_PRELUDE, change_directory
from portal.api.importers.variables import read_variables, report_references
from scheduling.core.jobspec.errors import Place, RefusalError
from scheduling.core.jobspec.scalars import read_command, read_string

FORMAT: Final = "dstack"
LOGIN: Final = "REGISTRY_LOGIN"
_EMPTY: Final = Context()
_LEAST_WINDOW: Final = 600
_MOST_RETRIES: Final = 3
# A repository with the directory that it goes to: URL:/path.
_REPO_AT: Final = re.compile(r"((?:(?:https|ssh)://|git@[^:]+:)[^:]+(?::[0-9]+/[^:]+)?):([/~.].*)")
_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_OTHER_TYPES: Final = {
    "service": "is a service that answers requests, and only tasks can be run.",
    "dev-environment": "is a place to work in, and only tasks can be run.",
    "volume": "is a volume, and only tasks can be run.",
    "gateway": "is a gateway, and only tasks can be run.",
}
_PATHS: Paths = (
    (r"^virtual_cluster$", "fleets"),
    (r"^max_duration$", "max_duration"),
    (r"^idle_policy\b.*", "utilization_policy"),
    (r"^grace_seconds$", "stop_duration"),
    (r"^labels\b", "tags"),
    (r"^source\.git\b.*", "repos"),
    (r"^roles\.worker\.instances$", "nodes"),
    (r"^roles\.worker\.device(_type)?s\b.*", "resources.gpu"),
    (r"^roles\.worker\.cpus$", "resources.cpu"),
    (r"^roles\.worker\.memory$", "resources.memory"),
    (r"^roles\.worker\.command$", "commands"),
    (r"^roles\.worker\.", ""),
)


def import_dstack(
    text: str | bytes, context: Context = _EMPTY, content_type: str = ""
) -> Imported:
    """Translate a dstack document.

    Args:
        text: the document as it was sent.
        context: rules of admins, and what there is here.
        content_type: of the document; YAML is assumed.

    Returns:
        The native spec, or the nodes of a fleet, with warnings and what has no counterpart.

    Raises:
        ImportRefusedError: the document is malformed, or cannot become a job.
    """
    return translate_dstack(parse_document(text, content_type), context)


def translate_dstack(document: object, context: Context = _EMPTY) -> Imported:
    """Translate a dstack document that has been read already; see ``import_dstack``."""
    report = Report()
    top = Section(document, Place(errors=report.errors), report)
    kind = top.take("type")
    spec: dict[str, Any] = {}
    nodes: tuple[dict[str, Any], ...] = ()
    if kind == "fleet":
        nodes = read_fleet(top)
    elif kind == "task":
        spec = _task(top, context)
    else:
        words = _OTHER_TYPES.get(str(kind), "is not task, the kind that can be run.")
        top.at("type").refuse(kind, words, "Write type: task.", "malformed")
        report.raise_errors()
    return finish_translation(
        top,
        spec=spec,
        nodes=nodes,
        paths=_PATHS,
        format=FORMAT,
        holds_secrets=bool(spec and spec["roles"]["worker"].get("secrets")),
    )


def _task(top: Section, context: Context) -> dict[str, Any]:
    report = top.report
    spec: dict[str, Any] = {"name": top.text("name") or "task"}
    spec |= standing(context, _fleets(top), report)
    priority = top.integer("priority", 0, 100)
    if priority is not None and "priority" not in spec and "class" not in spec:
        spec["priority"] = priority
    _durations(top, spec)
    _idle_policy(top, spec)
    if retries := _retries(top):
        spec["retries"] = retries
    if labels := _tags(top):
        spec["labels"] = labels
    if source := _repos(top):
        spec["source"] = source
    spec["compat"] = {"format": FORMAT}
    spec["roles"] = {"worker": _role(top, context)}
    report_rest(top)
    return spec


def _fleets(top: Section) -> list[Named]:
    found = []
    for item, place in top.items("fleets"):
        name = item.get("name") if isinstance(item, Mapping) else item
        if isinstance(name, str):
            found.append(Named("fleet", name, place))
        else:
            place.refuse(item, "is no name of a fleet.", "Write its name.", "wrong-type")
    return found


def _durations(top: Section, spec: dict[str, Any]) -> None:
    for key, ours in (("max_duration", "max_duration"), ("stop_duration", "grace_seconds")):
        seconds = top.read(key, read_seconds)
        if seconds == OFF and key == "stop_duration":
            top.report.warn(top.at(key), "is off; jobs get an hour at most to save their work.")
            spec[ours] = 3600
        elif seconds is not None and seconds != OFF:
            spec[ours] = seconds


def _idle_policy(top: Section, spec: dict[str, Any]) -> None:
    """A job is stopped after the window here too, and its owner is warned before that."""
    if top.peek("utilization_policy") is None:
        return
    section = top.section("utilization_policy")
    below = section.integer("min_gpu_utilization", 0, 100)
    window = section.read("time_window", read_seconds)
    section.finish()
    if not below or window in (None, OFF):
        words = "It names no share of the time, or no window, so that nothing idles by it."
        top.report.lacks(top.at("utilization_policy"), "", words, needed=False)
        return
    stop = max(int(window or 0), _LEAST_WINDOW)
    if stop != window:
        words = f"is short; the job is stopped after {_LEAST_WINDOW // 60} minutes, and no sooner."
        top.report.warn(section.at("time_window"), words)
    warn = max(stop // 2, 300)
    spec["idle_policy"] = {"below": below, "warn_after": warn, "stop_after": stop}


def _retries(top: Section) -> dict[str, int]:
    value = top.peek("retry")
    if value is None or isinstance(value, bool):
        top.take("retry")
        events = ["no-capacity", "interruption", "error"] if value else []
    else:
        section = top.section("retry")
        events = [str(item) for item, _ in section.items("on_events")]
        section.lacks("duration", "Retries are counted, not timed.", needed=False)
        section.finish()
    for event in set(events) - {"no-capacity", "interruption", "error"}:
        top.report.lacks(top.at("retry"), event, "There is no such event here.", needed=True)
    if "no-capacity" not in events:
        words = "does not name no-capacity; the job waits for devices all the same."
        top.report.warn(top.at("retry"), words)
    found = {} if "interruption" in events else {"node": 0, "preempted": 0}
    if "error" in events:
        words = f"names error; the job is tried again up to {_MOST_RETRIES} times."
        top.report.warn(top.at("retry"), words)
        found["user"] = _MOST_RETRIES
    return found


def _tags(top: Section) -> dict[str, str]:
    found = {}
    for key, value, place in top.section("tags").entries():
        if isinstance(value, str) and len(value) <= 63 and _LABEL.fullmatch(key):
            found[key] = value
        else:
            words = "Labels are texts of up to 63 characters."
            top.report.lacks(place, value, words, needed=False)
    return found


def _repos(top: Section) -> dict[str, Any] | None:
    """The one git repository that can be fetched; everything else is reported."""
    source: dict[str, Any] | None = None
    for item, place in top.items("repos"):
        given = item if isinstance(item, Mapping) else {"url": item}
        section = Section(given, place, top.report)
        url = section.peek("url")
        remote = isinstance(url, str) and url.startswith(("https://", "ssh://", "git@"))
        if remote and (match := _REPO_AT.fullmatch(url)):
            url, where = match.groups()
            words = "The repository is the working directory."
            top.report.lacks(place, where, words, needed=True)
        if not remote or source is not None:
            words = "Only one git repository is fetched; upload other files as an archive."
            top.report.lacks(place, url or section.peek("local_path"), words, needed=True)
            section.rest()
            continue
        section.take("url")
        ref = section.text("hash") or section.peek("branch")
        branch = section.text("branch")
        if branch and ref != branch:
            top.report.warn(section.at("branch"), "was left out, since a commit is named.")
        source = {"git": {"url": url, **({"ref": ref} if ref else {})}}
        section.lacks("path", "The repository is the working directory.", needed=True)
        section.finish()
    return source


def _role(top: Section, context: Context) -> dict[str, Any]:
    role: dict[str, Any] = {"instances": top.integer("nodes", 1, 1000) or 1}
    role |= read_resources(top.section("resources"), context)
    image = top.text("image")
    if image is not None and (name := read_image(image, top.at("image"), top.report)):
        role["image"] = name
    _login(top, role)
    env = read_variables(top, "env")
    if env:
        role["env"] = env
    _python(top, has_image="image" in role)
    script = _script(top, has_image="image" in role)
    if script is not None:
        role["command"] = script
    return role


def _login(top: Section, role: dict[str, Any]) -> None:
    section = top.section("registry_auth")
    user, password = section.text("username"), section.take("password")
    section.finish()
    if password is None:
        return
    if not isinstance(password, str) or "${{" in password or not user or "${{" in user:
        words = "Only a user and a password that are written out can be used."
        top.report.lacks(section.at("password"), "", words, needed=True)
    elif "image" in role:
        role["secrets"] = {LOGIN: f"{user}:{password}"}
        role["image_secret"] = LOGIN


def _python(top: Section, *, has_image: bool) -> None:
    words = "The Python of the node or of the image runs; dstack's own images are not used."
    top.lacks("python", words, needed=not has_image)
    if not has_image:
        top.lacks("nvcc", "dstack's own images are not used.", needed=True)


def _script(top: Section, *, has_image: bool) -> str | None:
    """All commands, each run if the one before it succeeded."""
    commands: list[str] = []
    for item, place in top.items("commands"):
        try:
            text = read_string(item, "Write a shell command.").strip()
        except RefusalError as refusal:
            place.note(item, refusal)
            continue
        report_references(text, place, top.report)
        commands.append(text)
    directory = top.text("working_dir")
    before = BASH_PRELUDE if _wants_bash(top, has_image=has_image) else ""
    if directory not in (None, ".", ""):
        top.report.warn(top.at("working_dir"), "must be there on every node.")
        before += change_directory(str(directory))
    place = top.at("commands")
    if not commands:
        place.refuse(None, "holds no command.", "Give commands.", "missing-field")
        return None
    body = " && ".join(f"{{ :\n{command}\n}}" for command in commands)
    if any("DSTACK_MPI_HOSTFILE" in command for command in commands):
        before += _HOSTFILE
    try:
        return read_command(f"{before}{body}\n" if len(commands) > 1 else before + commands[0])
    except RefusalError as refusal:
        place.note(body, refusal)
        return None


_HOSTFILE: Final = (
    'export DSTACK_MPI_HOSTFILE="$PWD/.dstack-hostfile"\n'
    "for host in $DSTACK_NODES_IPS; do\n"
    '  printf "%s slots=%s\\n" "$host" "$DSTACK_GPUS_PER_NODE"\n'
    'done > "$DSTACK_MPI_HOSTFILE"\n'
)


def _wants_bash(top: Section, *, has_image: bool) -> bool:
    shell = top.text("shell")
    if shell not in (None, "sh", "bash", "/bin/sh", "/bin/bash"):
        words = "Commands run with sh or bash."
        top.report.lacks(top.at("shell"), shell, words, needed=True)
    return str(shell).endswith("bash") if shell else not has_image
