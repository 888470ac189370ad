"""Policies that order jobs: backfill, queues with guarantees, fair shares, shortest first."""
