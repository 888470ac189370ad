#!/bin/sh
# Starts a holder with gaps and two guests on the nodes of the demo, and waits until they run:
#     sh examples/sharing/start.sh
# It turns device sharing on with a token of a cluster admin in TESSERA_ADMIN_TOKEN, unless it is
# on already. The guests start when the holder has run for 60 s. The overview shows all three.
set -eu
cd "$(dirname "$0")/../.."
here=examples/sharing

job_of() { sed -n 's/^job \([0-9]*\) .*/\1/p'; }

wait_for() { # wait_for JOB SECONDS: until the job runs
    left=$2
    until ./tessera status "$1" --json 2>/dev/null | grep -q '"state": "running"'; do
        left=$((left - 2))
        [ "$left" -gt 0 ] || { echo "job $1 does not run:" && ./tessera why "$1" && exit 1; }
        sleep 2
    done
}

if ! ./tessera sharing status --json | grep -q '"sharing": true'; then
    if [ -z "${TESSERA_ADMIN_TOKEN:-}" ]; then
        echo "Device sharing is off. A cluster admin turns it on: ./tessera sharing on" >&2
        exit 1
    fi
    TESSERA_TOKEN=$TESSERA_ADMIN_TOKEN ./tessera sharing on
fi

# The holder first, then a job for each other device of its type, so that guests find none idle.
holder=$(./tessera submit $here/holder.yaml --upload | job_of)
wait_for "$holder" 120
./tessera submit $here/rest.yaml
for guest in 1 2; do
    guests="${guests:-} $(./tessera submit $here/guest.yaml --upload | job_of)"
done
echo "holder $holder runs; guests$guests start when it has run for 60 s ..."
for guest in $guests; do
    wait_for "$guest" 300
done
./tessera sharing job "$holder"
