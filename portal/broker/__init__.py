"""The broker: its connection, keys that processes share, and requests for tasks."""
