#!/usr/bin/env bash
# Serves the converted sample model in the background (or finds it running), asks it a question
# and leaves it running. VENV and PORT come from the Makefile; the model's directory is $1.
set -euo pipefail
cd "$(dirname "$0")/.."
model=$1
url=http://127.0.0.1:$PORT
log=.models/serve.log
pid_file=.models/serve.pid

running() { [ -f "$pid_file" ] && kill -0 "$(cat "$pid_file")" 2>/dev/null; }

if ! running; then
    nohup setsid "$VENV/bin/tunan" serve "$model" --port "$PORT" >"$log" 2>&1 </dev/null &
    echo $! >"$pid_file"
fi
"$VENV/bin/tunan" chat --url "$url" --wait 600 --temperature 0 --max-tokens 64 "What is the capital of France? Answer in one sentence." || {
    status=$?
    running || tail -n 3 "$log" >&2
    exit "$status"
}
cat <<EOF

The server is at $url and goes on running (log: $log). Ask it something:
  $VENV/bin/tunan chat --url $url
  curl $url/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello"}]}'
Stop it with: make stop
EOF
