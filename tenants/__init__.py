"""Users, tenants, roles, tokens and the record of every change."""
