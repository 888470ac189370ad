#!/bin/sh
# Starts a holder and two guests on the demo's nodes, as alice, after an admin has turned device
# sharing on. The guests start when the holder has run for 60 s:  sh examples/sharing/start.sh
set -e
cd "$(dirname "$0")/../.."
./tessera submit examples/sharing/holder.yaml --upload
./tessera submit examples/sharing/rest.yaml
./tessera submit examples/sharing/guest.yaml --upload
./tessera submit examples/sharing/guest.yaml --upload
