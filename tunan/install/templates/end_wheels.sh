
rm -rf "$PREFIX"
rm -f "$WHEELS/@SUMS@"
sums=$(cd "$WHEELS" && find . -type f -exec sha256sum {} +)
echo "$sums" >"$WHEELS/@SUMS@"
touch "$WHEELS/@FILLED@"
echo "install: $WHEELS is filled; copy it to the machine without a network"
