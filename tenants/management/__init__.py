"""Management commands of ``tenants``."""
