# The user that the service runs as
if [ "$(id -u)" = 0 ] && ! id tunan >/dev/null 2>&1; then useradd --system --create-home tunan; fi
