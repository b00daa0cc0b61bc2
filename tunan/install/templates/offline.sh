
# Nothing is asked of a network: all Python packages come from this folder.
WHEELS=@WHEELS@
export PIP_NO_INDEX=1 PIP_FIND_LINKS=$WHEELS
