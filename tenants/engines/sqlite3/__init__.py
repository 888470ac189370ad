"""SQLite engine with the audit chain."""
