# The locked packages of the CPU engine, torch's CPU build apart
[ -f "$PROJECT/requirements/engine-cpu.lock" ] || die "no requirements in $PROJECT; set PROJECT in this script to the clone"
"$VENV/bin/pip" download --no-deps --only-binary :all: -d "$WHEELS" -r "$PROJECT/requirements/torch.txt" \
    --extra-index-url @TORCH_INDEX@
"$VENV/bin/pip" download --no-deps --only-binary :all: -d "$WHEELS" --require-hashes \
    -r "$PROJECT/requirements/engine-cpu.lock"
