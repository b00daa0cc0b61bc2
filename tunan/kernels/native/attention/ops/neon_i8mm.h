// As with dot products: matrix products are for linear layers.
#include "attention/ops/neon_dotprod.h"
