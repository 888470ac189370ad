"""Outgoing notifications: signed requests and mail."""
