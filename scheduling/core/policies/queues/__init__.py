"""Policies that order jobs: backfill, queues with guarantees, fair shares, least first."""
