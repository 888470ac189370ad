"""Importer of SkyPilot tasks and SSH node pools."""
