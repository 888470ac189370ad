"""Names of container images as other systems write them."""

import re
from typing import Final

from portal.api.importers.reading import Report
from scheduling.core.jobspec.errors import Place

_SCHEME: Final = re.compile(r"(?:docker|dockerd|podman|enroot)://|docker:(?!//)")


def read_image(text: str, place: Place, report: Report) -> str | None:
    """The image's name as engines take it; None for a file or another kind of image.

    Args:
        text: ``docker://``, ``docker:``, Pyxis' ``registry#name:tag``, or a plain name.
        place: where it stands.
        report: takes what has no counterpart.
    """
    name = _SCHEME.sub("", text.strip(), count=1).replace("#", "/", 1)
    if name.startswith(("/", "./", "../")) or name.endswith((".sqsh", ".sif")) or "://" in name:
        words = "Only images of a registry can be run, not files or images of a cloud."
        report.lacks(place, text, words, needed=True)
        return None
    _user, at, rest = name.partition("@")
    if at and not rest.startswith("sha256:"):
        report.warn(place, "names a user of the registry, who was left out.")
        name = rest
    return name
