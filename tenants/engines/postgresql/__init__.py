"""PostgreSQL engine with the audit chain."""
