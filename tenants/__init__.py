"""Who may use what: users, tenants, roles, tokens and the record of every change."""
