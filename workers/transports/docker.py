"""Nodes with a container engine: its API through the node's own SSH connection."""

import asyncio
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import asyncssh
import docker
import docker.errors
import requests

from scheduling.core.jobspec import ContainerUser
from tessera import protocol
from tessera.bundle import Bundle
from tessera.isolation import ContainerView
from tessera.protocol import NodeHello, RunSpec
from workers.transports import replies
from workers.transports.base import (
    Container,
    Preparation,
    PrepareError,
    RefusedError,
    UnreachableNodeError,
)
from workers.transports.container_accounts import add_account, check_own_user
from workers.transports.container_config import (
    RUN_LABEL,
    check_settings,
    container_config,
    container_ref,
    job_user,
    rights_of,
)
from workers.transports.images import Progress, obtain
from workers.transports.ssh import Patience, SshAddress, SshTransport

log = logging.getLogger(__name__)

ENGINE_SECONDS: Final = 120
ENGINE_THREADS: Final = 4
MOST_CAUSE: Final = 500
ANY_VERSION: Final = "1.41"

P = ParamSpec("P")
T = TypeVar("T")


class DockerTransport(SshTransport):
    """A node that runs containers, and plain processes as well."""

    def __init__(
        self,
        address: SshAddress,
        bundle: Bundle,
        patience: Patience | None = None,
        *,
        progress: Progress | None = None,
        engine_socket: str = "",
    ) -> None:
        """Create a connection to a node.

        Args:
            address: address of the node.
            bundle: the node's part.
            patience: timeouts.
            progress: gets the run id and a text while an image is pulled.
            engine_socket: path of the engine's socket, if not the one of the probe.
        """
        super().__init__(address, bundle, patience)
        self._progress = progress or (lambda run_id, text: None)
        self._threads: ThreadPoolExecutor | None = None
        self._engine: docker.APIClient | None = None
        self._engine_lock = asyncio.Lock()
        self._socket_on_node = engine_socket
        self._asked_for_engine = False
        self._socket_dir: Path | None = None

    async def close(self) -> None:
        """Disconnect; the engine's forwarded socket closes with the connection."""
        await super().close()
        engine, self._engine = self._engine, None
        threads, self._threads = self._threads, None
        if threads is not None:
            if engine is not None:
                threads.submit(engine.close)
            threads.shutdown(wait=False)
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._socket_dir = None

    async def cancel(self, run_id: str) -> None:
        """Remove a prepared run and its container.

        The node removes the container with the run. A container that was just created after the
        node had removed the run is removed by this connection.
        """
        await super().cancel(run_id)
        if self._engine is not None:
            await self._call(_remove, self._engine, run_id)

    async def prepare(self, preparation: Preparation) -> None:
        """Pull the image, prepare the run directory, create the container.

        Raises:
            PrepareError: the preparation failed; class ``image`` if the image is at fault.
        """
        if preparation.container is None:
            await super().prepare(preparation)
            return
        engine = await self._open_engine()
        loop = asyncio.get_running_loop()

        is_abandoned = threading.Event()

        def tell(run_id: str, text: str) -> None:
            # The engine's calls run in threads, and the receiver belongs to the loop.
            if is_abandoned.is_set():
                raise UnreachableNodeError("the pull was abandoned")
            loop.call_soon_threadsafe(self._progress, run_id, text)

        ref = container_ref(preparation.run, self._socket_on_node, preparation.container.settings)
        run = replace(preparation.run, container=ref)
        hello = self.hello
        if hello is None:
            raise UnreachableNodeError("no connection to the node")
        try:
            image = await self._call(obtain, engine, run.run_id, preparation.container, tell)
            reply = await self._prepare_run(replace(preparation, run=run))
            view = replies.checked(replies.read_view, reply)
            container = replace(preparation.container, image=image)
            await self._call(_create, engine, run, container, hello, view)
        except RefusedError as error:
            await self._give_up(run.run_id)
            raise PrepareError(error.code, error.message, error.failure_class) from error
        finally:
            is_abandoned.set()

    async def _give_up(self, run_id: str) -> None:
        """Remove all parts of a run that could not be prepared."""
        try:
            await self.cancel(run_id)
        except RefusedError as error:
            log.warning("%s could not be cancelled: %s", run_id, error)

    async def _open_engine(self) -> docker.APIClient:
        async with self._engine_lock:
            if self._engine is None:
                self._engine = await self._reach_engine()
            return self._engine

    async def _reach_engine(self) -> docker.APIClient:
        """Forward the engine's socket to a local one that only this process can open."""
        if not await self._has_engine():
            raise PrepareError(
                "no-container-engine", "this node has no container engine", protocol.IMAGE
            )
        self._socket_dir = Path(tempfile.mkdtemp(prefix="tessera-"))
        here = self._socket_dir / "engine.sock"
        try:
            await self._open_connection().forward_local_path(str(here), self._socket_on_node)
        except (OSError, asyncssh.Error) as error:
            raise UnreachableNodeError(
                f"the engine's socket cannot be forwarded: {error}"
            ) from error
        self._threads = ThreadPoolExecutor(ENGINE_THREADS, thread_name_prefix="engine")
        return await self._call(_connect, here)

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call to the engine in a thread, with errors of this package."""
        if self._threads is None:
            raise UnreachableNodeError("no connection to the node")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))
        except docker.errors.APIError as error:
            log.warning("the engine of %s refused: %s", self._address.host, error.explanation)
            raise PrepareError(
                "engine-refused",
                f"the node's container engine refused the run: {cause_of(error, self.hello)}",
                protocol.NODE,
            ) from error
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise UnreachableNodeError(
                f"the container engine does not respond: {error}"
            ) from error

    async def _has_engine(self) -> bool:
        if not self._socket_on_node and not self._asked_for_engine:
            self._socket_on_node = (await self.probe()).docker_socket
            self._asked_for_engine = True
        return bool(self._socket_on_node)


def cause_of(error: docker.errors.APIError, hello: NodeHello | None) -> str:
    """Return the engine's message for the job's owner, without the directories of the node."""
    text = " ".join(str(error.explanation or f"status {error.status_code}").split())
    if hello is not None:
        text = text.replace(hello.root, f"~/{protocol.ROOT_DIR}").replace(hello.home, "~")
    return text[:MOST_CAUSE]


def _connect(socket: Path) -> docker.APIClient:
    """Create a client of the engine's API version; it is closed if the engine does not respond."""
    address = f"unix://{socket}"
    asking = docker.APIClient(base_url=address, version=ANY_VERSION, timeout=ENGINE_SECONDS)
    try:
        version = asking.version(api_version=False)["ApiVersion"]
    finally:
        asking.close()
    return docker.APIClient(base_url=address, version=version, timeout=ENGINE_SECONDS)


def _create(
    engine: docker.APIClient,
    run: RunSpec,
    container: Container,
    hello: NodeHello,
    view: ContainerView,
) -> None:
    """Create the container, named by the run; an existing one is adopted."""
    rights = rights_of(engine)
    is_own = container.settings.user is ContainerUser.IMAGE
    has_node_ids = not (rights.rootless or rights.remapped)
    check_settings(run, container.settings, view, rights)
    try:
        config = container_config(engine, run, container, hello, view, rights=rights)
        engine.create_container_from_config(config, name=run.run_id)  # type: ignore[no-untyped-call]
    except docker.errors.ImageNotFound as error:
        raise PrepareError("image-not-found", container.image, protocol.IMAGE) from error
    except docker.errors.APIError as error:
        # If the name is in use, Docker returns 409 and Podman 500.
        owner = _owner(engine, run.run_id)
        if owner is None:
            raise
        if owner != run.run_id:
            raise PrepareError(
                "container-name-taken",
                "another container already uses the name of the run",
                protocol.NODE,
            ) from error
    if not is_own:
        add_account(engine, run.run_id, *job_user(hello, rights))
    elif has_node_ids:
        check_own_user(engine, run.run_id, container.image)


def _owner(engine: docker.APIClient, name: str) -> str | None:
    """Return the run of a container, empty for a foreign one; None if it does not exist."""
    try:
        found = engine.inspect_container(name)
    except docker.errors.NotFound:
        return None
    return str((found["Config"].get("Labels") or {}).get(RUN_LABEL, ""))


def _remove(engine: docker.APIClient, run_id: str) -> None:
    """Remove the run's container and the holder of its network, where they are the run's."""
    for name in (run_id, f"{run_id}.network"):
        if _owner(engine, name) == run_id:
            engine.remove_container(name, v=True, force=True)
