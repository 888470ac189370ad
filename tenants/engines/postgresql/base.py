"""PostgreSQL; Django loads the class of this name from a module of this name."""

from django.db.backends.postgresql import base

from tenants.engines.chaining import ChainingMixin


class DatabaseWrapper(ChainingMixin, base.DatabaseWrapper):
    """A connection whose commits extend the audit's chain."""
