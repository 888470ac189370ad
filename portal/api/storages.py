"""Storages that jobs mount by name."""

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, read_body, read_changes
from portal.api.schema import IF_MATCH, PAGE, Op
from portal.api.views import ApiViewSet, expected_version, versioned
from scheduling.clusters.queries.storages import StorageView, list_storages
from scheduling.clusters.services.storages import create_storage, delete_storage, update_storage
from tenants.clock import database_now
from tenants.errors import NotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageIn:
    """A new storage. Its source is `/directory` of the nodes, or `server:/export` (NFS).

    Without `tenants` and `virtual_clusters`, all jobs may use it. A storage with `checkpoints` has
    no mount point: jobs name it as their `checkpoint_dir`.
    """

    name: str
    source: str
    mount: str = ""
    writable: bool = False
    checkpoints: bool = False
    tenants: tuple[str, ...] = ()
    virtual_clusters: tuple[str, ...] = ()
    default_for: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePatch:
    """Changes to a storage. Running jobs do not change; queued jobs are checked again."""

    source: str = ""
    mount: str = ""
    writable: bool = False
    checkpoints: bool = False
    tenants: tuple[str, ...] = ()
    virtual_clusters: tuple[str, ...] = ()
    default_for: tuple[str, ...] = ()
    note: str = ""


class StorageNodeOut(TypedDict):
    """A storage on one node. `cause` is empty where all jobs can use it."""

    node: str
    usable: bool
    cause: str
    total_bytes: int
    free_bytes: int


class StorageOut(TypedDict):
    """A storage; `source` and `nodes` are empty for viewers who do not manage nodes."""

    id: int
    name: str
    source: str
    mount: str
    writable: bool
    checkpoints: bool
    tenants: list[str]
    virtual_clusters: list[str]
    default_for: list[str]
    note: str
    nodes: list[StorageNodeOut]
    usable_nodes: int
    total_bytes: int
    free_bytes: int
    version: int


class StorageViewSet(ApiViewSet):
    collection = "storages"
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=StorageOut, pages=True),
        "create": Op(body=StorageIn, answer=StorageOut, status=201),
        "retrieve": Op(answer=StorageOut),
        "partial_update": Op(takes=(IF_MATCH,), body=StoragePatch, answer=StorageOut),
        "destroy": Op(takes=(IF_MATCH,), status=204),
    }

    def list(self, request: Request) -> Response:
        """List storages that your jobs may use; node managers get all."""
        found = self.cut(list_storages(self.viewer), lambda row: row.id)
        return self.page(found, storage_out)

    def create(self, request: Request) -> Response:
        """Create a storage."""
        wanted = read_body(StorageIn, request.data)
        row = create_storage(
            viewer=self.viewer,
            name=wanted.name,
            source=wanted.source,
            mount=wanted.mount,
            writable=wanted.writable,
            checkpoints=wanted.checkpoints,
            tenants=wanted.tenants,
            virtual_clusters=wanted.virtual_clusters,
            default_for=wanted.default_for,
            note=wanted.note,
            now=database_now(),
        )
        return self._answer(row.pk, status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a storage."""
        return self._answer(pk)

    def partial_update(self, request: Request, pk: int) -> Response:
        """Update a storage."""
        update_storage(
            viewer=self.viewer,
            storage_id=pk,
            expected_version=expected_version(request),
            **read_changes(StoragePatch, request.data),
        )
        return self._answer(pk)

    def destroy(self, request: Request, pk: int) -> Response:
        """Delete a storage that no queued or running job uses; its files remain."""
        delete_storage(
            viewer=self.viewer, storage_id=pk, expected_version=expected_version(request)
        )
        return Response(status=204)

    def _answer(self, pk: int, *, status: int = 200) -> Response:
        for row in list_storages(self.viewer):
            if row.id == pk:
                return versioned(storage_out(row), row.version, status=status)
        raise NotFoundError("Storage not found, or you may not use it.", field="id", value=pk)


storage_out = Body(StorageOut, StorageView)
