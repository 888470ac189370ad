#!/bin/sh
# Runs once on the new primary: admits the standby, and lets commits wait for it from the next start on.
set -eu
echo "host replication tessera all scram-sha-256" >> "$PGDATA/pg_hba.conf"
echo "synchronous_standby_names = 'db_b'" >> "$PGDATA/postgresql.conf"
