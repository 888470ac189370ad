"""Fixtures of the tenants' tests."""

from tests.support.databases import real_database

__all__ = ["real_database"]
