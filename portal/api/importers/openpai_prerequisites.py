"""The ``prerequisites`` of an OpenPAI job: images, and what commands may refer to."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from portal.api.importers.reading import Section

_KINDS: Final = ("dockerimage", "script", "data", "output")
_PLUGIN: Final = "com.microsoft.pai.runtimeplugin"


@dataclass(frozen=True, slots=True)
class Prerequisites:
    """Prerequisites by kind and name, each with its uri and its words for people."""

    by_kind: Mapping[str, Mapping[str, Mapping[str, Any]]]

    def image(self, role: Section) -> str | None:
        """The image that a role names."""
        found = self._named(role, "dockerImage", "dockerimage", required=True)
        uri = found.get("uri")
        return uri if isinstance(uri, str) else None

    def references(self, role: Section) -> dict[str, Mapping[str, Any]]:
        """What ``$script``, ``$data`` and ``$output`` mean in a role's commands."""
        return {
            kind: self._named(role, kind, kind)
            for kind in ("script", "data", "output")
            if role.has(kind)
        }

    def _named(
        self, role: Section, key: str, kind: str, *, required: bool = False
    ) -> Mapping[str, Any]:
        name = role.text(key, required=required)
        if name is None:
            return {}
        if name not in self.by_kind[kind]:
            role.at(key).refuse(
                name,
                f"is no prerequisite of type {kind}.",
                "Add it to prerequisites, or correct the name.",
                "conflict",
            )
        return self.by_kind[kind].get(name, {})


def read_prerequisites(top: Section) -> Prerequisites:
    """Read the list."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {kind: {} for kind in _KINDS}
    for section in top.sections("prerequisites"):
        kind = section.text("type", required=True)
        if kind is not None and kind.startswith(_PLUGIN):
            section.report.lacks(
                section.place, kind, "Plugins of the runtime do not run here.", needed=True
            )
            continue
        name = section.text("name", required=True)
        if kind is not None and kind not in _KINDS:
            section.at("type").refuse(
                kind, "is no type of prerequisite.", f"Write one of {', '.join(_KINDS)}."
            )
        entry = _entry(section, name, kind)
        if kind in found and name is not None:
            if name in found[kind]:
                section.at("name").refuse(name, "is used twice.", "Rename one.", "duplicate")
            found[kind][name] = entry
    return Prerequisites(found)


def _entry(section: Section, name: str | None, kind: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "uri": _uri(section, kind)}
    for key in ("version", "contributor", "description"):
        entry[key] = section.take(key)
    section.take("protocolVersion")
    auth = section.take("auth")
    if auth:
        section.report.lacks(
            replace(section.at("auth"), hidden=True),
            auth,
            "Credentials of registries are not translated: write them as a secret of the role, "
            "user:password, and its name as image_secret.",
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
        section.at("uri").refuse(None, "is missing.", "Give a list of uris.", "missing-field")
    return uris
