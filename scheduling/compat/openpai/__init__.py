"""Importer of OpenPAI jobs (protocol version 2)."""
