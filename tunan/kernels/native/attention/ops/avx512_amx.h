// As with AVX-512: tiles are for linear layers.
#include "attention/ops/avx512_vnni.h"
