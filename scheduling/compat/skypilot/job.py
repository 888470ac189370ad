"""Translation of SkyPilot tasks to jobs, and of pools of SSH hosts to lists of nodes."""

import re
from collections.abc import Mapping
from typing import Any, Final

from scheduling.compat.context import Context, Named, cluster_and_priority
from scheduling.compat.documents import parse_document
from scheduling.compat.importer import GangNames, Importer, Member, as_variable
from scheduling.compat.reading import ParseReport, Paths, Section, finish_translation
from scheduling.compat.result import Imported
from scheduling.compat.shared import (
    BASH_PRELUDE,
    read_hosts,
    read_secrets,
    read_storage,
    read_variables,
)
from scheduling.compat.skypilot.messages import TABLE, phrase
from scheduling.compat.skypilot.resources import WantedResources, read_resources
from scheduling.core.jobspec.errors import DocumentPlace, RefusalError
from scheduling.core.jobspec.scalars import read_command
from tessera.messages import Sentence

FORMAT: Final = "skypilot"
_EMPTY: Final = Context()
_VOLUME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_POOL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,39})")
_TELLING: Final = frozenset({"run", "num_nodes", "resources", "setup", "file_mounts"})
_ITSELF: Final = phrase("skypilot-settings")
_REST: Final[dict[str, tuple[bool, Sentence]]] = {
    "storage_mounts": (True, phrase("skypilot-buckets")),
    "service": (True, phrase("skypilot-service")),
    "pool": (True, phrase("skypilot-pool")),
    "inputs": (True, phrase("skypilot-data")),
    "outputs": (True, phrase("skypilot-data")),
    "event_callback": (False, phrase("skypilot-callback")),
    "config": (False, _ITSELF),
    "experimental": (False, _ITSELF),
    "api_version": (False, _ITSELF),
}
_PATHS: Paths = (
    (r"^virtual_cluster$", "resources.infra"),
    (r"^source\.git\b.*", "workdir"),
    (r"^labels\b", "resources.labels"),
    (r"^storage\b.*", "file_mounts"),
    (r"^roles\.worker\.instances$", "num_nodes"),
    (r"^roles\.worker\.device(_type)?s\b.*", "resources.accelerators"),
    (r"^roles\.worker\.(cpus|memory)$", r"resources.\1"),
    (r"^roles\.worker\.image$", "resources.image_id"),
    (r"^roles\.worker\.env\b", "envs"),
    (r"^roles\.worker\.secrets\b", "secrets"),
    (r"^roles\.worker\.command$", "run"),
)


def import_skypilot(
    text: str | bytes, context: Context = _EMPTY, content_type: str = ""
) -> Imported:
    """Translate a SkyPilot task, or a file of SSH node pools.

    Args:
        text: the document as it was sent.
        context: import rules, and facts about this cluster.
        content_type: media type of the document; YAML by default.

    Returns:
        The native specification, or the nodes of the pools, with warnings and unsupported parts.

    Raises:
        ImportRefusedError: the document is malformed, or no job can represent it.
    """
    return translate_skypilot(parse_document(text, content_type), context)


def translate_skypilot(document: object, context: Context = _EMPTY) -> Imported:
    """Translate a parsed SkyPilot document; see ``import_skypilot``."""
    report = ParseReport()
    top = Section(document, DocumentPlace(errors=report.errors), report)
    spec: dict[str, Any] = {}
    nodes: tuple[dict[str, Any], ...] = ()
    if is_node_pools(document):
        nodes = _pools(top)
    else:
        spec = _task(top, context)
    return finish_translation(
        top,
        spec=spec,
        nodes=nodes,
        paths=_PATHS,
        format=FORMAT,
        holds_secrets=isinstance(document, Mapping) and bool(document.get("secrets")),
    )


def is_node_pools(document: object) -> bool:
    """Return whether a document is a file of SSH node pools: names with lists of hosts."""
    return (
        isinstance(document, Mapping)
        and bool(document)
        and all(isinstance(pool, Mapping) and "hosts" in pool for pool in document.values())
    )


def _pools(top: Section) -> tuple[dict[str, Any], ...]:
    nodes: list[dict[str, Any]] = []
    for name, value, place in top.entries():
        if not _POOL.fullmatch(name):
            place.refuse(name, phrase("skypilot-not-a-pool"), phrase("import-write-letters-dash"))
            continue
        pool = Section(value, place, top.report)
        nodes += read_hosts(pool, pool=name, host_key="ip", labels={"pool": name})
        pool.finish()
    return tuple(nodes)


def _task(top: Section, context: Context) -> dict[str, Any]:
    wanted = read_resources(top.section("resources"), context)
    spec: dict[str, Any] = {"name": top.text("name") or "task"}
    spec |= cluster_and_priority(
        context, [] if wanted.infra is None else [Named("infra", *wanted.infra)], top.report
    )
    if wanted.is_spot and spec.pop("priority", None) is None:
        spec["class"] = "opportunistic"
    if wanted.retries:
        spec["retries"] = {"user": wanted.retries}
    if wanted.labels:
        spec["labels"] = wanted.labels
    if source := _workdir(top):
        spec["source"] = source
    if storage := _storages(top):
        spec["storage"] = storage
    spec["compat"] = {"format": FORMAT}
    spec["roles"] = {"worker": _role(top, wanted)}
    _config(top)
    for key, (needed, words) in _REST.items():
        top.leave_out(key, words, needed=needed)
    return spec


def _storages(top: Section) -> list[dict[str, Any]]:
    """Return the storages of ``volumes`` and of named ``file_mounts``."""
    found: list[dict[str, Any]] = []
    for key in ("volumes", "file_mounts"):
        if not isinstance(top.peek(key), Mapping):
            top.leave_out(key, phrase("import-volumes"), needed=True)
            continue
        for mount, value, place in top.section(key).entries():
            name = value.get("name") if isinstance(value, Mapping) else value
            if isinstance(name, str) and _VOLUME.fullmatch(name):
                found += read_storage(name, mount, place, top.report)
            else:
                words = "skypilot-file-mounts" if key == "file_mounts" else "import-volumes"
                top.report.leave_out(place, value, phrase(words), needed=True)
    return found


def _config(top: Section) -> None:
    """Report SkyPilot's settings; only some of them affect the task's containers."""
    if not isinstance(top.peek("config"), Mapping):
        return
    section = top.section("config")
    section.leave_out("kubernetes", phrase("skypilot-kubernetes"), needed=True)
    left: list[tuple[str, Any, DocumentPlace]] = []
    if isinstance(section.peek("docker"), Mapping):
        docker = section.section("docker")
        words = phrase("skypilot-docker-options")
        docker.leave_out("run_options", words, needed=True)
        left = docker.entries()
    for _name, value, place in (*left, *section.entries()):
        top.report.leave_out(place, value, _ITSELF, needed=False)


def _workdir(top: Section) -> dict[str, Any] | None:
    value = top.peek("workdir")
    words = phrase("skypilot-workdir")
    if not isinstance(value, Mapping):
        top.leave_out("workdir", words, needed=True)
        return None
    section = top.section("workdir")
    url, ref = section.text("url", required=True), section.text("ref")
    section.finish()
    return {"git": {"url": url, **({"ref": ref} if ref else {})}}


def _role(top: Section, wanted: WantedResources) -> dict[str, Any]:
    role: dict[str, Any] = {
        "instances": top.integer("num_nodes", 1, 1000) or 1,
        "devices": wanted.devices,
        **wanted.role,
    }
    env = read_variables(top, "envs")
    secrets = read_variables(top, "secrets", hidden=True)
    if env:
        role["env"] = env
    if secrets:
        role["secrets"] = secrets
        words = phrase("skypilot-secrets")
        top.report.warn(top.at("secrets"), words)
    _command(role, top, sorted(secrets))
    return role


def _command(role: dict[str, Any], top: Section, secrets: list[str]) -> None:
    setup, run = top.text("setup"), top.text("run")
    place = top.at("run")
    body = read_secrets(secrets)
    if setup and setup.strip():
        words = phrase("skypilot-setup")
        top.report.warn(top.at("setup"), words)
        body += f"(\n:\n{setup.strip()}\n) || exit $?\n"
    if not run or not run.strip():
        place.refuse(
            None, phrase("import-no-command"), phrase("import-give", key="run"), "missing-field"
        )
        return
    try:
        role["command"] = read_command(BASH_PRELUDE + body + run.strip() + "\n")
    except RefusalError as refusal:
        place.note(run, refusal)


def _is_skypilot(document: Mapping[object, object]) -> bool:
    if "roles" in document:
        return False
    return not _TELLING.isdisjoint(document) or is_node_pools(document)


def _variables(gang: GangNames, member: Member, _has_gpus: bool) -> dict[str, str]:
    hosts = "\n".join(peer.host for peer in gang.members)
    rank, gpus = str(member.node_rank), str(len(member.devices))
    return {
        "SKYPILOT_NUM_NODES": str(len(gang.members)),
        "SKYPILOT_NODE_RANK": rank,
        "SKYPILOT_NODE_IPS": hosts,
        "SKYPILOT_NUM_GPUS_PER_NODE": gpus,
        "SKYPILOT_SETUP_NODE_RANK": rank,
        "SKYPILOT_SETUP_NODE_IPS": hosts,
        "SKYPILOT_SETUP_NUM_GPUS_PER_NODE": gpus,
        # Equal for all attempts, as for SkyPilot's managed jobs.
        "SKYPILOT_TASK_ID": f"tessera-{gang.job_id}_{as_variable(gang.job_name)}",
        "SKYPILOT_USER": gang.user,
    }


SKYPILOT: Final = Importer(
    name=FORMAT,
    title="SkyPilot",
    read=import_skypilot,
    messages=TABLE,
    compat_format=FORMAT,
    variables=_variables,
    recognises=_is_skypilot,
    rule_kinds={"infra": phrase("skypilot-infra-kind")},
)
