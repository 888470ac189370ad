"""SQLite engine; Django requires these names of the module and the class."""

from django.db.backends.sqlite3 import base

from tenants.engines.chaining import ChainingMixin


class DatabaseWrapper(ChainingMixin, base.DatabaseWrapper):
    """A connection whose commits extend the audit's chain."""
