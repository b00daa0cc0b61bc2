# vLLM for CPUs as locked, this project and its kernels
[ -f "$PROJECT/scripts/setup.sh" ] || die "no scripts/setup.sh in $PROJECT; set PROJECT in this script to the clone"
PYTHON=$PYTHON VENV=$VENV TORCH_INDEX=@TORCH_INDEX@ "$PROJECT/scripts/setup.sh"
PATH=$VENV/bin:$PATH "$PROJECT/scripts/build_kernels.sh"
