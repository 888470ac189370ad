"""Creation of the file storage from its settings, once for each process and configuration."""

from functools import lru_cache

from scheduling.storage.base import FileStorage
from scheduling.storage.config import StorageConfig
from scheduling.storage.directory import DirectoryStorage
from scheduling.storage.objects import ObjectStorage


@lru_cache(maxsize=16)
def open_storage(config: StorageConfig) -> FileStorage:
    """Return the storage of a configuration; the same value returns the same instance."""
    return DirectoryStorage(config.data_dir) if config.is_directory else ObjectStorage(config)
