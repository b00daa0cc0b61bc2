# The driver (Ascend HDK @DRIVER_MINIMUM@ or newer)
have=$(version_in "$ASCEND/driver/version.info")
if [ -n "$have" ] && ! compgen -G "$PACKAGES/@DRIVER@" >/dev/null &&
    printf '%s\n' @DRIVER_MINIMUM@ "$have" | sort -V -C; then
    echo "driver: $have stays"
else
    file=$(vendor_file '@DRIVER@' @HDK_PAGE@)
    if is_installed "$file" "$have"; then
        echo "driver: $have is installed"
    else
        bash "$file" @DRIVER_ARGUMENTS@
        REBOOT=1
    fi
fi
