# CANN's operator kernels for this chip
install_cann @OPS@
