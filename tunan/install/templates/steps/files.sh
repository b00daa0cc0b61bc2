# The environment file, systemd units, Dockerfile and manifests; a deployment file that is there stays
config=()
if [ -f "$PREFIX/deploy.yaml" ]; then config=(--config "$PREFIX/deploy.yaml"); fi
"$VENV/bin/tunan" install --target @TARGET@ --os @SYSTEM@ --machine @MACHINE@ --prefix "$PREFIX" \
    "${config[@]}" --write "$PREFIX" --overwrite
