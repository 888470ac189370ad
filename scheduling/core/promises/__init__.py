"""Audit of the sharing promise: waits in the shared cluster against a private one.

``audit.audit`` is the entry point. Its input is an export of one virtual cluster and one span.
"""
