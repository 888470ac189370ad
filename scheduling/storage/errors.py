"""Refusal of a request because the file storage is not available."""

from typing import ClassVar

from scheduling.core.messages import sentence
from tenants.errors import DomainError


class StorageAwayError(DomainError):
    """The object store does not respond, so a file was not stored or cannot be read."""

    code = "storage-unavailable"
    status = 503
    title: ClassVar[str] = sentence("file-storage-not-responding")
    retry_after = 10

    @classmethod
    def of_upload(cls) -> "StorageAwayError":
        return cls(
            sentence("upload-not-stored"), field="file", remedy=sentence("upload-again-later")
        )

    @classmethod
    def of_round(cls) -> "StorageAwayError":
        return cls(
            sentence("stored-round-not-readable"),
            field="number",
            remedy=sentence("retry"),
        )
