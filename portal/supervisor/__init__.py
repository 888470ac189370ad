"""Starts, watches and ends everything that one machine needs: what ``tessera up`` runs."""
