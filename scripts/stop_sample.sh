#!/usr/bin/env bash
# Stops the server that run_sample.sh left running, letting it finish its requests.
set -euo pipefail
cd "$(dirname "$0")/.."
pid_file=.models/serve.pid
[ -f "$pid_file" ] || { echo "no server was left running"; exit 0; }
pid=$(cat "$pid_file")
kill -TERM "$pid" 2>/dev/null || true
for _ in $(seq 400); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
done
rm -f "$pid_file"
echo "stopped"
