# The driver's user, before the driver; and the one that the service runs as, who may open the devices
getent group HwHiAiUser >/dev/null || groupadd HwHiAiUser
id HwHiAiUser >/dev/null 2>&1 || useradd -g HwHiAiUser -d /home/HwHiAiUser -m -s /bin/bash HwHiAiUser
id tunan >/dev/null 2>&1 || useradd --system --create-home --groups HwHiAiUser tunan
