"""What the portal says in languages other than English (``docs/translating.md``)."""

from portal.i18n.said import Name, is_english, said

__all__ = ["Name", "is_english", "said"]
