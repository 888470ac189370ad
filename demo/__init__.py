"""A cluster to try the portal with, and generated content to measure it at size."""
