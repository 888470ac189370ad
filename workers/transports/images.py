"""Access to images that a node has cached: the registry decides, and its responses are recorded.

An engine's cache belongs to the whole node, and images in it to the tenants that could pull them:

1. A job with a login queries the registry with it at every start, also for a cached image.
2. A job without a login queries it anonymously, unless an anonymous pull of exactly this
   image has succeeded on this node before: a public image costs no further request.
3. A refusal is final, even for a cached image.
4. If the registry is unreachable, tenants may run a cached image if they have pulled
   exactly this image before. All tenants may run a public one.
5. Images that did not come from a registry are local: all tenants may run them, and no registry is
   queried. An image is local if the engine has no registry digest for it, or if its name
   begins with ``localhost/`` (Podman) or with a prefix that the admin has declared.
6. A mirror of a registry serves anonymous pulls only, and its images are public.
7. An image is found by its name only. An id could name any image in the cache, and no registry
   can check it: ids are refused.

Answers are recorded as tags of the image in the engine, below ``tessera.local/granted``: they
belong to the image's id, survive restarts, and go with the image.
"""

import hashlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

import docker
import docker.errors
import docker.utils

from scheduling.clusters.services.registry_logins import registry_of
from tessera import protocol
from workers.transports.base import Container, PrepareError

log = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[str, str], None]

OWN_NAMES: Final = "tessera.local/"
GRANTS: Final = f"{OWN_NAMES}granted"
LOCAL_PREFIX: Final = "localhost/"
EVERYBODY: Final = ""
"""Tenant name for all tenants: the image was pulled without a login."""

_IMAGE_ID: Final = re.compile(r"sha256:[0-9a-f]+|[0-9a-f]{64}", re.IGNORECASE)

TELL_EVERY_SECONDS: Final = 2.0
_COMPLETE: Final = ("Pull complete", "Already exists")
_DOWNLOADED: Final = ("Download complete", "Extracting", *_COMPLETE)
_OF_LAYERS: Final = ("Pulling fs layer", "Waiting", "Downloading", *_DOWNLOADED)

UNREACHABLE: Final = (
    *("dial tcp", "connection refused", "connection reset", "no such host", "no route to host"),
    *("network is unreachable", "i/o timeout", "handshake timeout", "deadline exceeded"),
    *("client.timeout", "server misbehaving", "temporary failure", "unexpected eof"),
    *("toomanyrequests", "too many requests", "internal server error", "bad gateway"),
    *("service unavailable", "gateway timeout"),
)
"""Texts in the engine's errors that mean no response of the registry; all others are refusals."""


def obtain(engine: docker.APIClient, run_id: str, container: Container, progress: Progress) -> str:
    """Ensure that the node has the image and that the job may run it.

    Args:
        engine: engine of the node.
        run_id: the run, for ``progress``.
        container: container with the image, the job's login and its tenant.
        progress: receives the run id and a text while the engine pulls, and then an empty text.

    Returns:
        The image's id, by which the container is to be created.

    Raises:
        PrepareError: class ``image``: the image does not exist, or the job may not pull it.
    """
    texts: list[str] = []

    def tell(run: str, text: str) -> None:
        texts[:] = [text]
        progress(run, text)

    try:
        return _obtain(engine, run_id, container, tell)
    finally:
        if texts:
            progress(run_id, "")


def _obtain(
    engine: docker.APIClient, run_id: str, container: Container, progress: Progress
) -> str:
    if container.image.startswith(OWN_NAMES):
        raise _refused(f"{container.image}: names below {OWN_NAMES} are reserved")
    if _IMAGE_ID.fullmatch(container.image):
        raise _refused(f"{container.image} is an image id; use the name of the image")
    cached = _inspect(engine, container.image)
    if cached is not None and _needs_no_question(engine, container, cached):
        return str(cached["Id"])
    mirrored = _from_mirror(engine, run_id, container, progress)
    if mirrored:
        return mirrored
    try:
        _pull(engine, run_id, container, progress)
    except _NoAnswerError as error:
        known = (EVERYBODY, container.tenant)
        if cached is None or not any(_granted(engine, who, cached) for who in known):
            raise _refused(str(error)) from error
        progress(run_id, f"the registry of {container.image} does not respond: using the cache")
        return str(cached["Id"])
    found = _inspect(engine, container.image)
    if found is None:
        raise PrepareError("image-not-found", container.image, protocol.IMAGE)
    grantee = container.tenant if container.login else EVERYBODY
    engine.tag(found["Id"], GRANTS, tag=_grant_tag(grantee, found))
    return str(found["Id"])


def _from_mirror(
    engine: docker.APIClient, run_id: str, container: Container, progress: Progress
) -> str:
    """Return the id of the image from the mirror of its registry; empty if there is none.

    A mirror pulls with its own rights, so jobs with a login do not use it. The images of a mirror
    count as public. If it fails, the registry itself decides.
    """
    name = "" if container.login else mirrored(container.image, container.mirrors)
    if not name:
        return ""
    found = _inspect(engine, name)
    if found is None or not _granted(engine, EVERYBODY, found):
        try:
            _pull(engine, run_id, replace(container, image=name), progress)
        except (PrepareError, _NoAnswerError) as error:
            log.warning("the mirror does not have %s: %s", name, error)
            return ""
        found = _inspect(engine, name)
        if found is None:
            return ""
        engine.tag(found["Id"], GRANTS, tag=_grant_tag(EVERYBODY, found))
    return str(found["Id"])


def mirrored(image: str, mirrors: Mapping[str, str]) -> str:
    """Return the name of an image at the mirror of its registry; empty without a mirror.

    Args:
        image: name of the image; without a host, it is of Docker Hub.
        mirrors: host and path of the mirror by host of the registry.
    """
    host, rest = registry_of(image)
    return f"{mirrors[host]}/{rest}" if host in mirrors else ""


class _NoAnswerError(Exception):
    """The registry did not answer."""


def _needs_no_question(
    engine: docker.APIClient, container: Container, cached: dict[str, Any]
) -> bool:
    if not cached.get("RepoDigests"):
        return True
    if container.image.startswith((LOCAL_PREFIX, *container.local_images)):
        return True
    return not container.login and _granted(engine, EVERYBODY, cached)


def _pull(engine: docker.APIClient, run_id: str, container: Container, progress: Progress) -> None:
    """Pull with the job's own login, which goes into the request's header alone.

    Raises:
        PrepareError: the registry refuses.
        _NoAnswerError: the registry does not answer.
    """
    progress(run_id, f"pulling {container.image}")
    repository, tag = docker.utils.parse_repository_tag(container.image)
    login = _login(container)
    try:
        layers = PullProgress(container.image)
        for line in engine.pull(
            repository, tag=tag or "latest", stream=True, decode=True, auth_config=login
        ):
            if "error" in line:
                raise _failure(str(line["error"]))
            text = layers.take(line, time.monotonic())
            if text:
                progress(run_id, text)
    except docker.errors.APIError as error:
        raise _failure(str(error.explanation or error)) from error


class PullProgress:
    """Bytes and layers of a pull, from the lines of the engine.

    The engine reports the size of a layer when its download begins, so the sum grows meanwhile.
    """

    def __init__(self, image: str) -> None:
        self._image = image
        self._sizes: dict[str, tuple[int, int]] = {}
        self._layers: set[str] = set()
        self._complete: set[str] = set()
        # The caller has reported the start.
        self._said, self._said_at = self.text(), -TELL_EVERY_SECONDS

    def take(self, line: Mapping[str, Any], now: float) -> str:
        """Take a line of the engine; return the new text, or nothing while it is too soon.

        Args:
            line: ``status``, ``id`` of a layer, and ``progressDetail`` in bytes.
            now: seconds of a monotonic clock.
        """
        layer, status = str(line.get("id", "")), str(line.get("status", ""))
        detail = line.get("progressDetail") or {}
        current, total = detail.get("current"), detail.get("total")
        if status in _OF_LAYERS:
            self._layers.add(layer)
        if status == "Downloading" and isinstance(current, int) and isinstance(total, int):
            self._sizes[layer] = min(current, total), total
        elif status in _DOWNLOADED and layer in self._sizes:
            _, size = self._sizes[layer]
            self._sizes[layer] = size, size
        if status in _COMPLETE:
            self._complete.add(layer)
        text = self.text()
        if text == self._said or now - self._said_at < TELL_EVERY_SECONDS:
            return ""
        self._said, self._said_at = text, now
        return text

    def text(self) -> str:
        """Describe the pull, such as ``pulling a/b: 1.2 GB of 4.5 GB (27 %), 3 of 12 layers``."""
        done = sum(current for current, _ in self._sizes.values())
        total = sum(size for _, size in self._sizes.values())
        text = f"pulling {self._image}"
        if total:
            text += f": {_size(done)} of {_size(total)} ({100 * done // total} %)"
        if self._layers:
            text += f", {len(self._complete)} of {len(self._layers)} layers"
        return text


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1000:.0f} kB"


def _failure(text: str) -> Exception:
    text = text[:500]
    lower = text.lower()
    return _NoAnswerError(text) if any(w in lower for w in UNREACHABLE) else _refused(text)


def _refused(text: str) -> PrepareError:
    return PrepareError("image-pull-failed", text, protocol.IMAGE)


def _login(container: Container) -> dict[str, str]:
    """Return ``X-Registry-Auth`` of the engine's API; an empty one is anonymous.

    Without any the client library would send the logins of the portal's own user.
    """
    if not container.login:
        return {}
    user, _, password = container.login.partition(":")
    return {"username": user, "password": password}


def _inspect(engine: docker.APIClient, name: str) -> dict[str, Any] | None:
    """Return the cached image of a name; None if the name is a prefix of its id."""
    try:
        found: dict[str, Any] = engine.inspect_image(name)  # type: ignore[no-untyped-call]
    except docker.errors.ImageNotFound:
        return None
    is_id = str(found["Id"]).removeprefix("sha256:").startswith(name)
    names = {tag.rpartition(":")[0].rpartition("/")[2] for tag in found.get("RepoTags") or ()}
    return None if is_id and name not in names else found


def _grant_tag(who: str, image: dict[str, Any]) -> str:
    """Return the tag that records a grant: one for each tenant and image."""
    digest = hashlib.sha256(f"{who}\n{image['Id']}".encode()).hexdigest()
    return digest[:40]


def _granted(engine: docker.APIClient, who: str, image: dict[str, Any]) -> bool:
    found = _inspect(engine, f"{GRANTS}:{_grant_tag(who, image)}")
    return found is not None and found["Id"] == image["Id"]
