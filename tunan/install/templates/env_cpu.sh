# To be sourced: the environment of Tunan's programs on @TARGET@.
export PATH="@PREFIX@/venv/bin:$PATH"
