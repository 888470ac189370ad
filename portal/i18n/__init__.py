"""What the portal says in languages other than English (``docs/translating.md``)."""

from portal.i18n.said import is_english, said

__all__ = ["is_english", "said"]
