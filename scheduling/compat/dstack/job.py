"""Translation of dstack tasks to jobs, and of fleets of SSH hosts to lists of nodes."""

import re
from collections.abc import Mapping
from typing import Any, Final

from scheduling.compat.context import Context, Named, cluster_and_priority
from scheduling.compat.documents import parse_document
from scheduling.compat.dstack.messages import TABLE, phrase
from scheduling.compat.dstack.resources import read_resources
from scheduling.compat.importer import GangNames, Importer, Member
from scheduling.compat.reading import ParseReport, Paths, Section, finish_translation
from scheduling.compat.result import Imported
from scheduling.compat.shared import (
    BASH_PRELUDE,
    OFF,
    change_directory,
    read_hosts,
    read_image,
    read_seconds,
    read_storage,
    read_variables,
    report_references,
)
from scheduling.core.jobspec.errors import DocumentPlace, RefusalError
from scheduling.core.jobspec.scalars import read_command, read_string
from tessera.messages import Sentence

FORMAT: Final = "dstack"
LOGIN: Final = "REGISTRY_LOGIN"
_EMPTY: Final = Context()
_LEAST_WINDOW: Final = 600
_MOST_RETRIES: Final = 3
# A repository with its target directory: URL:/path.
_REPO_AT: Final = re.compile(r"((?:(?:https|ssh)://|git@[^:]+:)[^:]+(?::[0-9]+/[^:]+)?):([/~.].*)")
_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_TYPES: Final = frozenset({"task", "service", "dev-environment", "fleet"})
_OTHER_TYPES: Final = {
    "service": phrase("dstack-service"),
    "dev-environment": phrase("dstack-dev-environment"),
    "volume": phrase("dstack-volume"),
    "gateway": phrase("dstack-gateway"),
}
_PATHS: Paths = (
    (r"^virtual_cluster$", "fleets"),
    (r"^max_duration$", "max_duration"),
    (r"^idle_policy\b.*", "utilization_policy"),
    (r"^grace_seconds$", "stop_duration"),
    (r"^labels\b", "tags"),
    (r"^source\.git\b.*", "repos"),
    (r"^storage\b.*", "volumes"),
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
        context: import rules, and facts about this cluster.
        content_type: media type of the document; YAML by default.

    Returns:
        The native specification, or the nodes of a fleet, with warnings and unsupported parts.

    Raises:
        ImportRefusedError: the document is malformed, or no job can represent it.
    """
    return translate_dstack(parse_document(text, content_type), context)


def translate_dstack(document: object, context: Context = _EMPTY) -> Imported:
    """Translate a parsed dstack document; see ``import_dstack``."""
    report = ParseReport()
    top = Section(document, DocumentPlace(errors=report.errors), report)
    kind = top.take("type")
    spec: dict[str, Any] = {}
    nodes: tuple[dict[str, Any], ...] = ()
    if kind == "fleet":
        nodes = read_fleet(top)
    elif kind == "task":
        spec = _task(top, context)
    else:
        words = _OTHER_TYPES.get(str(kind), phrase("dstack-not-a-task"))
        top.at("type").refuse(kind, words, phrase("dstack-write-task"), "malformed")
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
    spec |= cluster_and_priority(context, _fleets(top), report)
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
    if storage := read_volumes(top):
        spec["storage"] = storage
    report_unsupported(top)
    return spec


def _fleets(top: Section) -> list[Named]:
    found = []
    for item, place in top.items("fleets"):
        name = item.get("name") if isinstance(item, Mapping) else item
        if isinstance(name, str):
            found.append(Named("fleet", name, place))
        else:
            place.refuse(
                item, phrase("dstack-not-a-fleet"), phrase("dstack-write-fleet"), "wrong-type"
            )
    return found


def _durations(top: Section, spec: dict[str, Any]) -> None:
    for key, ours in (("max_duration", "max_duration"), ("stop_duration", "grace_seconds")):
        seconds = top.read(key, read_seconds)
        if seconds == OFF and key == "stop_duration":
            top.report.warn(top.at(key), phrase("dstack-stop-off"))
            spec[ours] = 3600
        elif seconds is not None and seconds != OFF:
            spec[ours] = seconds


def _idle_policy(top: Section, spec: dict[str, Any]) -> None:
    """Translate the idle policy; unlike dstack, Tessera warns the owner before the stop."""
    if top.peek("utilization_policy") is None:
        return
    section = top.section("utilization_policy")
    below = section.integer("min_gpu_utilization", 0, 100)
    window = section.read("time_window", read_seconds)
    section.finish()
    if not below or window in (None, OFF):
        words = phrase("dstack-idle-policy-incomplete")
        top.report.leave_out(top.at("utilization_policy"), "", words, needed=False)
        return
    stop = max(int(window or 0), _LEAST_WINDOW)
    if stop != window:
        words = phrase("dstack-window-short", minutes=_LEAST_WINDOW // 60)
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
        section.leave_out("duration", phrase("dstack-retry-duration"), needed=False)
        section.finish()
    for event in set(events) - {"no-capacity", "interruption", "error"}:
        top.report.leave_out(top.at("retry"), event, phrase("dstack-event"), needed=True)
    if "no-capacity" not in events:
        words = phrase("dstack-no-capacity")
        top.report.warn(top.at("retry"), words)
    found = {} if "interruption" in events else {"node": 0, "preempted": 0}
    if "error" in events:
        words = phrase("dstack-retry-error", most=_MOST_RETRIES)
        top.report.warn(top.at("retry"), words)
        found["user"] = _MOST_RETRIES
    return found


def _tags(top: Section) -> dict[str, str]:
    found = {}
    for key, value, place in top.section("tags").entries():
        if isinstance(value, str) and len(value) <= 63 and _LABEL.fullmatch(key):
            found[key] = value
        else:
            words = phrase("import-label-invalid")
            top.report.leave_out(place, value, words, needed=False)
    return found


def _repos(top: Section) -> dict[str, Any] | None:
    """Return the git repository that can be fetched, and report all others."""
    source: dict[str, Any] | None = None
    for item, place in top.items("repos"):
        given = item if isinstance(item, Mapping) else {"url": item}
        section = Section(given, place, top.report)
        url = section.peek("url")
        remote = isinstance(url, str) and url.startswith(("https://", "ssh://", "git@"))
        if remote and (match := _REPO_AT.fullmatch(url)):
            url, where = match.groups()
            words = phrase("dstack-repo-path")
            top.report.leave_out(place, where, words, needed=True)
        if not remote or source is not None:
            words = phrase("dstack-repos")
            top.report.leave_out(place, url or section.peek("local_path"), words, needed=True)
            section.rest()
            continue
        section.take("url")
        ref = section.text("hash") or section.peek("branch")
        branch = section.text("branch")
        if branch and ref != branch:
            top.report.warn(section.at("branch"), phrase("dstack-branch"))
        source = {"git": {"url": url, **({"ref": ref} if ref else {})}}
        section.leave_out("path", phrase("dstack-repo-path"), needed=True)
        section.finish()
    return source


def _role(top: Section, context: Context) -> dict[str, Any]:
    role: dict[str, Any] = {"instances": top.integer("nodes", 1, 1000) or 1}
    image = top.text("image")
    name = read_image(image, top.at("image"), top.report) if image is not None else None
    role |= read_resources(top.section("resources"), context, has_image=bool(name))
    if name:
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
        words = phrase("dstack-login")
        top.report.leave_out(section.at("password"), "", words, needed=True)
    elif "image" in role:
        role["secrets"] = {LOGIN: f"{user}:{password}"}
        role["image_secret"] = LOGIN


def _python(top: Section, *, has_image: bool) -> None:
    words = phrase("dstack-python")
    top.leave_out("python", words, needed=not has_image)
    if not has_image:
        top.leave_out("nvcc", phrase("dstack-images"), needed=True)


def _script(top: Section, *, has_image: bool) -> str | None:
    """Return all commands, each of which runs if the previous one succeeded."""
    commands: list[str] = []
    for item, place in top.items("commands"):
        try:
            text = read_string(item, phrase("import-write-command")).strip()
        except RefusalError as refusal:
            place.note(item, refusal)
            continue
        report_references(text, place, top.report)
        commands.append(text)
    directory = top.text("working_dir")
    before = BASH_PRELUDE if _wants_bash(top, has_image=has_image) else ""
    if directory not in (None, ".", ""):
        top.report.warn(top.at("working_dir"), phrase("import-path-on-every-node"))
        before += change_directory(str(directory))
    place = top.at("commands")
    if not commands:
        place.refuse(
            None,
            phrase("import-no-command"),
            phrase("import-give", key="commands"),
            "missing-field",
        )
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
        words = phrase("dstack-shell")
        top.report.leave_out(top.at("shell"), shell, words, needed=True)
    return str(shell).endswith("bash") if shell else not has_image


_CLOUD: Final = phrase("dstack-cloud")
_KEYS: Final[dict[str, tuple[bool, Sentence]]] = {
    "backends": (False, _CLOUD),
    "regions": (False, _CLOUD),
    "availability_zones": (False, _CLOUD),
    "instance_types": (False, _CLOUD),
    "instances": (True, phrase("import-no-node-choice")),
    "reservation": (False, _CLOUD),
    "spot_policy": (False, _CLOUD),
    "max_price": (False, _CLOUD),
    "creation_policy": (False, _CLOUD),
    "idle_duration": (False, _CLOUD),
    "termination_policy": (False, _CLOUD),
    "termination_idle_time": (False, _CLOUD),
    "pool_name": (False, _CLOUD),
    "backend_options": (False, _CLOUD),
    "files": (True, phrase("dstack-files")),
    "ports": (False, phrase("dstack-ports")),
    "privileged": (True, phrase("dstack-privileged")),
    "docker": (True, phrase("dstack-docker")),
    "user": (True, phrase("dstack-user")),
    "entrypoint": (True, phrase("dstack-entrypoint")),
    "home_dir": (True, phrase("dstack-home")),
    "single_branch": (False, phrase("dstack-single-branch")),
    "schedule": (True, phrase("dstack-schedule")),
    "stop_criteria": (True, phrase("dstack-stop-criteria")),
    "startup_order": (True, phrase("dstack-startup-order")),
    "groups": (True, phrase("dstack-groups")),
    "setup": (True, phrase("dstack-setup")),
    "model": (True, phrase("dstack-model")),
}
_HARMLESS: Final[dict[str, object]] = {"stop_criteria": "all-done", "startup_order": "any"}


def read_volumes(top: Section) -> list[dict[str, Any]]:
    """Return the storages of ``volumes``; volumes of an instance have no counterpart."""
    found: list[dict[str, Any]] = []
    for item, place in top.items("volumes"):
        name, path = None, None
        if isinstance(item, str):
            name, _, path = item.partition(":")
        elif isinstance(item, Mapping):
            name, path = item.get("name"), item.get("path")
        if not isinstance(name, str) or not isinstance(path, str) or name.startswith("/"):
            top.report.leave_out(place, item, phrase("import-volumes"), needed=True)
            continue
        found += read_storage(name, path, place, top.report)
    return found


def report_unsupported(top: Section) -> None:
    """Report the supported keys that have no counterpart."""
    for key, value in _HARMLESS.items():
        if top.peek(key) == value:
            top.take(key)
    for key, (needed, words) in _KEYS.items():
        top.leave_out(key, words, needed=needed)


_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,39})")


def read_fleet(top: Section) -> tuple[dict[str, Any], ...]:
    """Return the nodes of a fleet; a fleet of cloud instances is refused."""
    name = top.text("name") or "fleet"
    if not _NAME.fullmatch(name):
        top.at("name").refuse(
            name, phrase("dstack-not-a-fleet"), phrase("import-write-letters-dash")
        )
    top.leave_out("placement", phrase("dstack-placement"), needed=False)
    top.leave_out("blocks", phrase("import-no-blocks"), needed=False)
    top.leave_out("env", phrase("dstack-node-env"), needed=True)
    if top.peek("ssh_config") is None:
        words = phrase("dstack-no-ssh")
        top.at("ssh_config").refuse(None, words, phrase("dstack-give-ssh"), "missing-field")
        top.rest()
        return ()
    config = top.section("ssh_config")
    config.leave_out("network", phrase("import-node-address"), needed=False)
    nodes = read_hosts(config, pool=name, host_key="hostname", labels={"fleet": name})
    config.finish()
    return tuple(nodes)


def _is_dstack(document: Mapping[object, object]) -> bool:
    kind = document.get("type")
    return "roles" not in document and isinstance(kind, str) and kind in _TYPES


def _variables(gang: GangNames, member: Member, _has_gpus: bool) -> dict[str, str]:
    return {
        "DSTACK_RUN_NAME": gang.job_name,
        "DSTACK_NODES_NUM": str(len(gang.members)),
        "DSTACK_NODE_RANK": str(member.node_rank),
        "DSTACK_NODES_IPS": "\n".join(peer.host for peer in gang.members),
        "DSTACK_MASTER_NODE_IP": gang.master.host,
        "DSTACK_GPUS_PER_NODE": str(len(member.devices)),
        "DSTACK_GPUS_NUM": str(sum(len(peer.devices) for peer in gang.members)),
    }


DSTACK: Final = Importer(
    name=FORMAT,
    title="dstack",
    read=import_dstack,
    messages=TABLE,
    compat_format=FORMAT,
    variables=_variables,
    recognises=_is_dstack,
    rule_kinds={"fleet": phrase("dstack-fleet-kind")},
)
