"""The ``prerequisites`` of an OpenPAI job: images, scripts, data and outputs."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final

from scheduling.compat.openpai.messages import phrase
from scheduling.compat.reading import Section
from scheduling.core.jobspec.errors import RefusalError
from scheduling.core.jobspec.scalars import read_string
from tessera.messages import Listing

_KINDS: Final = ("dockerimage", "script", "data", "output")
_PLUGIN: Final = "com.microsoft.pai.runtimeplugin"
_COMMANDS: Final = f"{_PLUGIN}.cmd"
_NO_PLUGIN: Final = phrase("openpai-runtime-plugin")
_NOTHING_TO_RUN: Final = phrase("openpai-nothing-to-run")
_SHARED: Final = phrase("openpai-prerequisite-shared")


@dataclass(frozen=True, slots=True)
class Prerequisites:
    """Prerequisites by kind and name, each with its URI and description.

    Attributes:
        starts: commands of a plugin for the start of a task, by name; None without a plugin. Names
            are unique only per type, and roles do not contain the type: the last one counts, as in
            OpenPAI's runtime.
        shared: names that several prerequisites have.
    """

    by_kind: Mapping[str, Mapping[str, Mapping[str, Any]]]
    starts: Mapping[str, Sequence[str] | None] = field(default_factory=dict)
    shared: Set[str] = frozenset()

    def image(self, role: Section) -> str | None:
        found = self._named(role, "dockerImage", "dockerimage", required=True)
        uri = found.get("uri")
        return uri if isinstance(uri, str) else None

    def references(self, role: Section) -> dict[str, Mapping[str, Any]]:
        """Return the values of ``$script``, ``$data`` and ``$output`` in a role's commands."""
        return {
            kind: self._named(role, kind, kind)
            for kind in ("script", "data", "output")
            if role.has(kind)
        }

    def take_starts(self, role: Section) -> list[str]:
        """Return the start commands of a role's prerequisites, in their order."""
        found: list[str] = []
        place, others = role.at("prerequisites"), []
        for item, there in role.items("prerequisites"):
            if not isinstance(item, str) or item not in self.starts:
                others.append(item)
                continue
            if item in self.shared:
                role.report.warn(there, _SHARED)
            commands = self.starts[item]
            if commands is None:
                role.report.leave_out(there, item, _NOTHING_TO_RUN, needed=False)
            found += commands or ()
        if others:
            role.report.leave_out(place, others, _NO_PLUGIN, needed=True)
        if found:
            role.report.warn(place, phrase("openpai-starts"))
        return found

    def _named(
        self, role: Section, key: str, kind: str, *, required: bool = False
    ) -> Mapping[str, Any]:
        name = role.text(key, required=required)
        if name is None:
            return {}
        if name not in self.by_kind[kind]:
            role.at(key).refuse(
                name,
                phrase("openpai-not-a-prerequisite", kind=kind),
                phrase("openpai-add-prerequisite"),
                "conflict",
            )
        return self.by_kind[kind].get(name, {})


def read_prerequisites(top: Section) -> Prerequisites:
    found: dict[str, dict[str, Mapping[str, Any]]] = {kind: {} for kind in _KINDS}
    starts: dict[str, list[str] | None] = {}
    shared = set[str]()
    for section in top.sections("prerequisites"):
        kind = section.text("type", required=True)
        if kind is not None and kind.startswith(_PLUGIN):
            section.report.leave_out(section.place, kind, _NO_PLUGIN, needed=True)
            continue
        name = section.text("name", required=True)
        if kind is not None and kind not in _KINDS:
            section.at("type").refuse(
                kind,
                phrase("openpai-not-a-prerequisite-type"),
                phrase("openpai-write-one-of", names=Listing(_KINDS)),
            )
        if name in starts:
            shared.add(name)
        starts[name or ""] = _starts(section) if section.has("plugin") else None
        entry = _entry(section, name, kind, has_plugin=section.has("plugin"))
        if kind in found and name is not None:
            if name in found[kind]:
                section.at("name").refuse(
                    name, phrase("import-used-twice"), phrase("import-rename-one"), "duplicate"
                )
            found[kind][name] = entry
    return Prerequisites(found, starts, shared)


def _starts(section: Section) -> list[str]:
    """Return a plugin's commands for the start of a task, and report the rest of the plugin."""
    plugin = section.peek("plugin")
    if plugin != _COMMANDS:
        section.report.leave_out(section.at("plugin"), plugin, _NO_PLUGIN, needed=True)
        section.take("callbacks")
        return []
    found: list[str] = []
    for callback in section.sections("callbacks"):
        event = callback.text("event", required=True)
        commands = read_commands(callback, "commands")
        if event == "taskStarts":
            found += commands
        else:
            words = phrase("openpai-callback")
            callback.report.leave_out(callback.at("event"), event, words, needed=True)
        callback.finish()
    section.leave_out("require", phrase("openpai-require"), needed=True)
    section.leave_out("failurePolicy", phrase("openpai-failure-policy"), needed=False)
    return found


def read_commands(section: Section, key: str) -> list[str]:
    """Return the shell commands of a list without surrounding whitespace."""
    found: list[str] = []
    for item, place in section.items(key):
        try:
            found.append(read_string(item, phrase("import-write-command")).strip())
        except RefusalError as refusal:
            place.note(item, refusal)
    return found


def _entry(
    section: Section, name: str | None, kind: str | None, *, has_plugin: bool
) -> dict[str, Any]:
    section.take("plugin")
    uri = None if has_plugin and section.peek("uri") is None else _uri(section, kind)
    entry: dict[str, Any] = {"name": name, "uri": uri}
    for key in ("version", "contributor", "description"):
        entry[key] = section.take(key)
    section.take("protocolVersion")
    auth = section.take("auth")
    if auth:
        section.report.leave_out(
            replace(section.at("auth"), hidden=True),
            auth,
            phrase("openpai-credentials"),
            needed=True,
        )
    section.finish()
    return entry


def _uri(section: Section, kind: str | None) -> str | list[str] | None:
    if kind != "data":
        return section.text("uri", required=True)
    if isinstance(section.peek("uri"), str):
        return section.text("uri")
    uris = [item for item, _place in section.items("uri") if isinstance(item, str)]
    if not uris:
        section.at("uri").refuse(
            None, phrase("import-missing"), phrase("openpai-give-uris"), "missing-field"
        )
    return uris
