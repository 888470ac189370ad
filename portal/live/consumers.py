"""Websocket consumer: authorises topics, subscribes to them, and forwards the newest messages."""

import asyncio
import json
import logging
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.contrib.auth import HASH_SESSION_KEY
from django.urls import path
from django.utils.crypto import constant_time_compare

from portal.live.access import RefusedTopicError, group_for, job_of_log
from portal.live.hub import hub
from portal.live.pulse import pulse
from scheduling.jobs.services.ownership import note_log_read
from tenants.clock import database_now
from tenants.models import ApiToken, User
from tenants.selectors import viewer_of
from tenants.services import authenticate_token
from tenants.viewers import Viewer

logger = logging.getLogger(__name__)

MOST_TOPICS: Final = 200
MOST_IN_A_MESSAGE: Final = 2 * MOST_TOPICS
CLOSE_UNAUTHORISED: Final = 4401
CLOSE_MALFORMED: Final = 4400
CONFIRMED: Final = "confirmed"
LOOK_AGAIN_SECONDS: Final = 60.0
SIGN_IN_SECONDS: Final = 10.0
SPREAD_SECONDS: Final = 2.0


class LiveConsumer(AsyncJsonWebsocketConsumer):  # type: ignore[misc] # Channels has no types
    """Websocket protocol: ``{subscribe: [...]}`` in, ``{topic, version, data}`` out.

    ``{unsubscribe: [...]}`` ends a subscription; ``confirm: true`` confirms one. Messages of whole
    pages also have ``pace``: seconds over which clients spread their fetches.

    A slow client gets only the newest message of each topic and does not delay other clients.
    Rights are checked again every ``look_again_seconds`` (revoked token, ended
    membership). A socket without a session or token is closed after ``sign_in_seconds``. An
    unrequested ``confirmed`` means that messages may be lost and the client must fetch again.
    """

    look_again_seconds: float = LOOK_AGAIN_SECONDS
    sign_in_seconds: float = SIGN_IN_SECONDS
    spread_seconds: float = SPREAD_SECONDS

    def __init__(self) -> None:
        super().__init__()
        self.viewer: Viewer | None = None
        self.key = ""
        self.groups_of_topics: dict[str, str] = {}
        self.outbox: dict[str, str] = {}
        self.filled = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one socket, and release its resources at any kind of end.

        A broken socket during a send, or a database error, ends it without a disconnect message.
        """
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._leave()

    async def connect(self) -> None:
        """Accept the connection; a visitor without a session must send a token first."""
        await self.accept()
        user = self.scope.get("user")
        if isinstance(user, User) and user.is_active:
            self.viewer = await sync_to_async(viewer_of)(user)
        self.tasks = [
            asyncio.create_task(self._send_outbox()),
            asyncio.create_task(self._look_again()),
        ]
        if self.viewer is None:
            self.tasks.append(asyncio.create_task(self._wait_for_a_token()))
        pulse().join(self)

    async def receive(
        self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any
    ) -> None:
        """Handle one frame of the client; frames without text are ignored."""
        await self.receive_json(await self.decode_json(text_data or ""), **kwargs)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        if not isinstance(content, dict):
            await self.close(CLOSE_MALFORMED)
            return
        if isinstance(content.get("token"), str):
            await self._sign_in(content["token"])
        if self.viewer is None:
            await self.close(CLOSE_UNAUTHORISED)
            return
        wanted, unwanted = _topics(content, "subscribe"), _topics(content, "unsubscribe")
        # Each topic needs its own check of rights, so one message must not name thousands.
        if len(wanted) + len(unwanted) > MOST_IN_A_MESSAGE:
            await self.close(CLOSE_MALFORMED)
            return
        for topic in wanted:
            await self._subscribe(topic)
        for topic in unwanted:
            await self._unsubscribe(topic)
        if content.get("confirm") is True:
            await self._confirm(wanted)

    def take(self, topic: str, text: str) -> None:
        """Queue the newest message of a topic, and drop an unsent older one."""
        self.outbox[topic] = text
        self.filled.set()

    def missed(self) -> None:
        """Send a confirmation after a random delay, which spreads the fetches of clients."""
        wait = random.uniform(0, self.spread_seconds)  # noqa: S311
        asyncio.get_running_loop().call_later(
            wait, lambda: self.take(CONFIRMED, _confirmation(list(self.groups_of_topics)))
        )

    @classmethod
    async def decode_json(cls, text_data: str) -> Any:
        """Parse JSON; return None if it is invalid, and ``receive_json`` closes the socket."""
        try:
            content = await super().decode_json(text_data)
            # JSON can escape a surrogate, but a database query cannot contain it.
            json.dumps(content, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return None
        return content

    async def _leave(self) -> None:
        pulse().leave(self)
        for task in self.tasks:
            task.cancel()
        for topic in list(self.groups_of_topics):
            await self._unsubscribe(topic)

    async def _send_outbox(self) -> None:
        with suppress(asyncio.CancelledError):
            while True:
                await self.filled.wait()
                self.filled.clear()
                while self.outbox:
                    text = self.outbox.pop(next(iter(self.outbox)))
                    # Returns once the client can receive more.
                    await self.send(text_data=text)

    async def _sign_in(self, key: str) -> None:
        found = await sync_to_async(_token_now)(key)
        if found is not None:
            user, token = found
            self.viewer = await sync_to_async(viewer_of)(user, token)
            self.key = key

    async def _wait_for_a_token(self) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(self.sign_in_seconds)
            if self.viewer is None:
                await self.close(CLOSE_UNAUTHORISED)

    async def _look_again(self) -> None:
        """Check the rights to all subscribed topics again at intervals."""
        with suppress(asyncio.CancelledError):
            while True:
                # The random delay spreads the checks of clients that reconnect together after a
                # restart.
                await asyncio.sleep(self.look_again_seconds * random.uniform(0.5, 1))  # noqa: S311
                if self.viewer is None:
                    continue
                try:
                    await self._withdraw()
                except Exception as error:
                    # After any error, the loop must continue with the next check.
                    logger.warning("could not check the permissions of subscribers: %r", error)

    async def _withdraw(self) -> None:
        """Close a socket without rights; unsubscribe from forbidden topics."""
        self.viewer = await sync_to_async(_viewer_now)(self.scope, self.key)
        if self.viewer is None:
            await self.close(CLOSE_UNAUTHORISED)
            return
        for topic, group in list(self.groups_of_topics.items()):
            is_still_heard = await self._group_of(topic, self.viewer) == group
            if not is_still_heard and topic in self.groups_of_topics:
                await self._unsubscribe(topic)
                await self.send_json(_refusal(topic))

    async def _subscribe(self, topic: str) -> None:
        if topic in self.groups_of_topics or self.viewer is None:
            return
        has_room = len(self.groups_of_topics) < MOST_TOPICS
        group = await self._group_of(topic, self.viewer) if has_room else None
        if group is None:
            await self.send_json(_refusal(topic))
            return
        job_id = job_of_log(topic)
        if job_id is not None:
            await sync_to_async(note_log_read)(viewer=self.viewer, job_id=job_id)
        self.groups_of_topics[topic] = group
        await hub().follow(group, topic, self)

    async def _confirm(self, topics: list[str]) -> None:
        """Confirm that later messages are complete; the client has to fetch earlier changes."""
        heard = [topic for topic in topics if topic in self.groups_of_topics]
        await self.send(text_data=_confirmation(heard))

    async def _group_of(self, topic: str, viewer: Viewer) -> str | None:
        with suppress(RefusedTopicError):
            return await sync_to_async(group_for)(topic, viewer)
        return None

    async def _unsubscribe(self, topic: str) -> None:
        group = self.groups_of_topics.pop(topic, None)
        if group is None:
            return
        self.outbox.pop(topic, None)
        await hub().leave(group, self)


def _confirmation(topics: list[str]) -> str:
    version = time.time_ns() // 1_000
    return json.dumps({"topic": CONFIRMED, "version": version, "data": {"topics": topics}})


def _refusal(topic: str) -> dict[str, Any]:
    """Return the message that refuses a topic."""
    version = time.time_ns() // 1_000
    return {"topic": topic, "version": version, "data": None, "error": "refused"}


def _token_now(key: str) -> tuple[User, ApiToken] | None:
    return authenticate_token(key, database_now())


def _viewer_now(scope: Mapping[str, Any], key: str) -> Viewer | None:
    """Return the viewer of a token or session according to the current rows, or None."""
    if key:
        found = _token_now(key)
        return viewer_of(*found) if found is not None else None
    user = User.objects.filter(pk=scope["user"].pk, is_active=True).first()
    session = scope.get("session")
    if user is None or (session is not None and not _is_of(session, user)):
        return None
    return viewer_of(user)


def _is_of(session: Any, user: User) -> bool:
    """Return whether a session exists and is newer than the user's last password change."""
    signature = session.get(HASH_SESSION_KEY, "")
    return session.exists(session.session_key) and constant_time_compare(
        signature, user.get_session_auth_hash()
    )


def _topics(content: dict[str, Any], verb: str) -> list[str]:
    asked = content.get(verb)
    return [topic for topic in asked if isinstance(topic, str)] if isinstance(asked, list) else []


websocket_urlpatterns = [path("ws/live/", LiveConsumer.as_asgi())]
