"""Replacement of the control plane's SSH key on one node, during a session."""

import asyncio
import logging
from collections.abc import Sequence

from tenants.keyring import SshKey
from workers.node_service.directives import begin
from workers.node_service.ports import NodeAddress, Service
from workers.services.node_keys import KeyReplaced
from workers.transports.base import Transport, TransportError

log = logging.getLogger(__name__)


class KeyReplacement:
    """Replaces the key of one node, at most once at a time; running jobs are not affected."""

    def __init__(
        self,
        node: NodeAddress,
        transport: Transport,
        service: Service,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._node = node
        self._transport = transport
        self._service = service
        self._tasks = tasks
        self._is_running = False

    def begin(self, keys: Sequence[SshKey]) -> None:
        """Start a replacement by the first key, unless one is running."""
        if not self._is_running:
            self._is_running = begin(self._tasks, self._replace(keys))

    async def _replace(self, keys: Sequence[SshKey]) -> None:
        new, *old = keys
        cause = ""
        try:
            await self._transport.replace_key(new, old=[key.public for key in old])
        except TransportError as error:
            # The session continues: it does not depend on the new key.
            cause = str(error)
            log.warning("%s: its SSH key could not be replaced: %s", self._node.name, cause)
        try:
            await self._service.confirm(
                KeyReplaced(node_id=self._node.node_id, public=new.public, cause=cause)
            )
        finally:
            self._is_running = False
