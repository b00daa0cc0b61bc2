# The firmware of the same Ascend HDK
have=$(version_in "$ASCEND/firmware/version.info")
if [ -n "$have" ] && ! compgen -G "$PACKAGES/@FIRMWARE@" >/dev/null; then
    echo "firmware: $have stays"
else
    file=$(vendor_file '@FIRMWARE@' @HDK_PAGE@)
    if is_installed "$file" "$have"; then
        echo "firmware: $have is installed"
    else
        bash "$file" @FIRMWARE_ARGUMENTS@
        REBOOT=1
    fi
fi
