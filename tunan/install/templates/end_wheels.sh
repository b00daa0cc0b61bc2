
rm -rf "$PREFIX"
touch "$WHEELS/@FILLED@"
echo "install: $WHEELS is filled; copy it to the machine without a network"
