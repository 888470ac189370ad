"""Supervisor of all portal processes on one machine, run by ``tessera up``."""
