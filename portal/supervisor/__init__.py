"""Supervisor of all processes of one machine, run by ``tessera up``."""
