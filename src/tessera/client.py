"""A typed client of the REST API, for the command line and for scripts."""

import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx

from tessera.client_errors import (
    ApiError,
    ClientError,
    FieldError,
    UnreachableError,
    seen_fingerprint,
)
from tessera.results import Body, Job, LogPart, Node, Plan, Token, VirtualCluster, Why

__all__ = [
    "DEFAULT_URL",
    "ApiError",
    "Client",
    "ClientError",
    "FieldError",
    "Spec",
    "UnreachableError",
    "seen_fingerprint",
]

DEFAULT_URL: Final = "http://127.0.0.1:8000"
RETRY_PAUSES: Final = (0.2, 0.6, 1.5)
"""Seconds before each further try of a request that may be sent twice."""
LOG_PIECE_BYTES: Final = 256 * 1024
POLLS_AFTER_THE_END: Final = 10
"""Maximum number of polls for the rest of a log after its job has ended."""
YAML: Final = "application/yaml"

Spec = Mapping[str, Any] | str


class Client:
    """One connection to a portal.

    Requests that may be sent twice (reads, and submits, imports and clones, which carry an
    idempotency key) are retried if the connection fails; every other request is sent once.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: str = "",
        *,
        timeout_seconds: float = 30.0,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url.rstrip("/")
        headers = {"Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Token {token}"
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=f"{self.url}/api/v1/",
            headers=headers,
            timeout=timeout_seconds,
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the portal."""
        self._http.close()

    # Jobs

    def submit(self, spec: Spec, *, idempotency_key: str = "") -> Job:
        """Submit one job.

        Args:
            spec: the specification as a mapping, or as YAML text.
            idempotency_key: of several submits with the same key, only the first creates a job. A
                new key if empty.
        """
        return Job.from_body(self._send_spec("jobs/", spec, _keyed(idempotency_key)))

    def import_document(
        self,
        text: str,
        *,
        form: str = "auto",
        virtual_cluster: str = "",
        dry_run: bool = False,
        idempotency_key: str = "",
    ) -> Body:
        """Submit a document of another system, or only translate it.

        Args:
            text: the document or script, unchanged.
            form: name of the format; ``auto`` lets the portal recognise it.
            virtual_cluster: virtual cluster of the job; overrides the document.
            dry_run: translate and submit nothing.
            idempotency_key: as in ``submit``.

        Returns:
            ``{format, spec, more, nodes, warnings, unsupported, remarks, job, jobs}``.
        """
        asked = {"virtual_cluster": virtual_cluster, "dry_run": "1" if dry_run else ""}
        headers = {"Content-Type": "text/plain; charset=utf-8", **_keyed(idempotency_key)}
        options: dict[str, Any] = {"params": {k: v for k, v in asked.items() if v}}
        options["content"] = text.encode()
        answer: Body = self._request(
            "POST", f"import/{quote(form, safe='')}/", repeat=True, headers=headers, **options
        )
        return answer

    def plan(self, spec: Spec) -> Plan:
        """Plan a job without submitting it: whether and where it would run."""
        return Plan.from_body(self._send_spec("jobs/plan/", spec, {}))

    def upload(self, name: str, content: bytes, *, tenant: str = "") -> str:
        """Store an archive of source code for jobs: ``source: {archive: ...}``.

        Args:
            name: display name of the archive.
            content: a tar.gz file.
            tenant: name of the tenant; needed by people of several tenants.

        Returns:
            Its SHA-256.
        """
        headers = {"Content-Type": "application/gzip"}
        asked = {"name": name, **({"tenant": tenant} if tenant else {})}
        options: dict[str, Any] = {"params": asked, "content": content}
        stored = self._request("POST", "archives/", repeat=True, headers=headers, **options)
        return str(stored["sha256"])

    def job(self, job_id: int) -> Job:
        """Get one job."""
        return Job.from_body(self.get(f"jobs/{job_id}/"))

    def jobs(self, **filters: Any) -> Iterator[Job]:
        """List jobs, newest first, page by page.

        Args:
            filters: ``state``, ``virtual_cluster``, ``user``, ``order``.
        """
        return map(Job.from_body, self.pages("jobs/", **filters))

    def why(self, job_id: int) -> Why:
        """Get the reason for the state of a job."""
        return Why.from_body(self.get(f"jobs/{job_id}/why/"))

    def stop(self, job_id: int) -> Job:
        """Stop a job; jobs that have ended do not change."""
        return Job.from_body(self.post(f"jobs/{job_id}/stop/"))

    def clone(self, job_id: int, *, idempotency_key: str = "") -> Job:
        """Submit the specification of a job again.

        Args:
            job_id: ID of the job.
            idempotency_key: as in ``submit``.
        """
        path = f"jobs/{job_id}/clone/"
        headers = _keyed(idempotency_key)
        return Job.from_body(self._request("POST", path, repeat=True, json={}, headers=headers))

    def logs(
        self,
        job_id: int,
        *,
        role: str = "",
        rank: int | None = None,
        attempt: int = 0,
        offset: int = 0,
        limit: int = LOG_PIECE_BYTES,
    ) -> LogPart:
        """Get a piece of one member's log, from ``offset`` bytes on; 0 is the newest attempt."""
        wanted = {"role": role or None, "rank": rank, "attempt": attempt or None}
        window = {"offset": offset, "limit": limit}
        return LogPart.from_body(self.get(f"jobs/{job_id}/logs/", **wanted, **window))

    def follow_logs(
        self,
        job_id: int,
        *,
        role: str = "",
        rank: int | None = None,
        offset: int = 0,
        follow: bool = True,
        poll_seconds: float = 0.5,
    ) -> Iterator[str]:
        """Yield a log from ``offset`` to its end; with ``follow`` until the job has ended.

        After a failed connection, reading resumes at the last offset. When
        the job is started again, the log of the next attempt follows from its beginning.
        """
        attempt, patience = 0, POLLS_AFTER_THE_END
        while True:
            ended = not follow or self.job(job_id).has_ended
            part = yield from self._read_on(
                job_id, role=role, rank=rank, attempt=attempt, offset=offset
            )
            attempt, offset = part.attempt, max(offset, part.next_offset)
            if not follow:
                return
            if part.end:
                newest = self.logs(job_id, role=role, rank=rank, limit=1)
                if newest.attempt > attempt:
                    attempt, offset = newest.attempt, 0
                    continue
            patience -= ended
            if ended and (part.end or patience < 0):
                return
            self._sleep(poll_seconds)

    def _read_on(
        self, job_id: int, *, role: str, rank: int | None, attempt: int, offset: int
    ) -> Generator[str, None, LogPart]:
        while True:
            part = self.logs(job_id, role=role, rank=rank, attempt=attempt, offset=offset)
            if part.text:
                yield part.text
            if part.next_offset <= offset or part.next_offset >= part.size:
                return part
            attempt, offset = part.attempt, part.next_offset

    # Nodes, virtual clusters, tokens

    def nodes(self, **filters: Any) -> Iterator[Node]:
        """List nodes, page by page."""
        return map(Node.from_body, self.pages("nodes/", **filters))

    def add_node(self, node: Mapping[str, Any]) -> Node:
        """Add a node.

        Raises:
            ApiError: with status 409 and the fingerprint of the node, if ``host_key_fingerprint``
                is missing (see ``seen_fingerprint``).
        """
        return Node.from_body(self.post("nodes/", node))

    def portal_key(self) -> str:
        """Return the public SSH key of the portal, which nodes authorize."""
        return str(self.get("nodes/portal-key/")["public_key"])

    def update_node(self, node_id: int, changes: Mapping[str, Any]) -> Node:
        """Change labels, tenants, visible paths or networks of a node."""
        return Node.from_body(self._request("PATCH", f"nodes/{node_id}/", json=changes))

    def update_storage(self, storage_id: int, changes: Mapping[str, Any]) -> Any:
        """Change fields of a storage."""
        return self._request("PATCH", f"storages/{storage_id}/", json=changes)

    def delete_storage(self, storage_id: int) -> None:
        """Delete a storage that no queued or running job uses."""
        self._request("DELETE", f"storages/{storage_id}/")

    def set_least_isolation(self, level: str, *, virtual_cluster_id: int | None = None) -> Any:
        """Set the minimum isolation level of the cluster, or of one virtual cluster."""
        path = (
            "cluster/rules/"
            if virtual_cluster_id is None
            else f"virtual-clusters/{virtual_cluster_id}/"
        )
        return self._request("PATCH", path, json={"least_isolation": level})

    def act_on_node(self, node_id: int, action: str, *, reason: str = "") -> Node:
        """Cordon, uncordon, drain, ``declare-dead`` or ``reset-isolation`` a node."""
        return Node.from_body(self.post(f"nodes/{node_id}/{action}/", {"reason": reason}))

    def cluster_job_limits(self) -> Body:
        """Get the limits of live jobs of the cluster, and of each visible tenant."""
        body: Body = self.get("job-limits/cluster/")
        return body

    def set_cluster_job_limits(self, limits: Mapping[str, int | None]) -> Body:
        """Set ``per_person`` and ``per_tenant`` of the cluster; None is the built-in limit."""
        body: Body = self._request("PUT", "job-limits/cluster/", json=dict(limits))
        return body

    def tenant_job_limits(self, tenant_id: int) -> Body:
        """Get the limits of live jobs of a tenant and of its members."""
        body: Body = self.get(f"tenants/{tenant_id}/job-limits/")
        return body

    def set_tenant_job_limits(self, tenant_id: int, limits: Mapping[str, int | None]) -> Body:
        """Set ``per_person`` and ``per_tenant`` of a tenant; None restores the cluster's limit."""
        path = f"tenants/{tenant_id}/job-limits/"
        body: Body = self._request("PUT", path, json=dict(limits))
        return body

    def set_member_job_limit(self, membership_id: int, per_person: int | None) -> Body:
        """Set the limit of live jobs of a member; None restores the limit of the tenant."""
        path = f"members/{membership_id}/job-limit/"
        body: Body = self._request("PUT", path, json={"per_person": per_person})
        return body

    def virtual_clusters(self, **filters: Any) -> Iterator[VirtualCluster]:
        """List virtual clusters, page by page."""
        return map(VirtualCluster.from_body, self.pages("virtual-clusters/", **filters))

    def create_token(
        self, *, name: str, scopes: list[str], user: str, password: str, **more: Any
    ) -> Token:
        """Create a token, authenticated by name and password.

        Args:
            name: label of the token.
            scopes: scopes of the token.
            user: name of the user.
            password: that user's password.
            more: further fields: ``expires_in_days``, ``tenant``.
        """
        body = {"name": name, "scopes": scopes} | {k: v for k, v in more.items() if v is not None}
        login = httpx.BasicAuth(user, password)
        return Token.from_body(self._request("POST", "tokens/", json=body, auth=login))

    def create_password_link(self, username: str, *, user: str, password: str) -> Body:
        """Create a one-time link with which ``username`` chooses a password.

        Args:
            username: whose password the link sets.
            user: a cluster admin.
            password: that admin's password; tokens are refused.

        Returns:
            ``username``, ``url`` and ``expires_at``.
        """
        login = httpx.BasicAuth(user, password)
        body = {"username": username}
        made: Body = self._request("POST", "password-links/", json=body, auth=login)
        return made

    # Any resource

    def get(self, path: str, **parameters: Any) -> Any:
        """Read a resource below ``/api/v1/``; parameters that are ``None`` are omitted."""
        wanted = {name: value for name, value in parameters.items() if value is not None}
        return self._request("GET", path, params=wanted)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a body to a resource below ``/api/v1/``, once."""
        return self._request("POST", path, json=body or {})

    def patch(self, path: str, changes: Mapping[str, Any]) -> Any:
        """Change a resource below ``/api/v1/``."""
        return self._request("PATCH", path, json=dict(changes))

    def delete(self, path: str) -> None:
        """Delete a resource below ``/api/v1/``."""
        self._request("DELETE", path)

    def pages(self, path: str, **parameters: Any) -> Iterator[Body]:
        """Yield every entry of a list; further pages are fetched on demand."""
        while True:
            page = self.get(path, **parameters)
            yield from page["results"]
            if not page.get("next_cursor"):
                return
            parameters["cursor"] = page["next_cursor"]

    def _send_spec(self, path: str, spec: Spec, headers: Mapping[str, str]) -> Any:
        if isinstance(spec, str):
            typed = {**headers, "Content-Type": YAML}
            return self._request("POST", path, repeat=True, content=spec.encode(), headers=typed)
        return self._request("POST", path, repeat=True, json=dict(spec), headers=dict(headers))

    def _request(self, method: str, path: str, *, repeat: bool = False, **options: Any) -> Any:
        pauses = RETRY_PAUSES if repeat or method == "GET" else ()
        for pause in (*pauses, None):
            try:
                response = self._http.request(method, path, **options)
                break
            except httpx.TransportError as error:
                if pause is None:
                    raise UnreachableError(self.url, str(error) or type(error).__name__) from error
                self._sleep(pause)
            except httpx.InvalidURL as error:
                raise UnreachableError(self.url, str(error)) from error
        return _answer(response, self.url)


def _keyed(given: str) -> dict[str, str]:
    """Build the idempotency header, which makes a repeated request harmless."""
    return {"Idempotency-Key": given or uuid.uuid4().hex}


def _answer(response: httpx.Response, url: str) -> Any:
    try:
        body = response.json() if response.content else {}
    except ValueError:
        body = None
    if response.is_success and body is not None:
        return body
    known = body if isinstance(body, Mapping) else {}
    raise ApiError(status=response.status_code, body=known, reason=response.reason_phrase, url=url)
