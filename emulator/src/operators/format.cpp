// The size that a tensor has in the matrix unit's layout, for torch_npu to make room for it.
#include <algorithm>

#include "acl/acl.h"
#include "object.h"

namespace {

constexpr int ND = 2, FRACTAL_NZ = 29;
constexpr int64_t FRACTAL_ROWS = 16, FRACTAL_BYTES = 32;

int64_t columns_of_fractal(int dtype) {
    switch (dtype) {
        case ACL_INT8:
        case ACL_UINT8: return FRACTAL_BYTES;
        case ACL_FLOAT16:
        case ACL_BF16: return FRACTAL_BYTES / 2;
        default: return FRACTAL_BYTES / 4;
    }
}

int64_t blocks(int64_t size, int64_t width) { return (size + width - 1) / width; }

}  // namespace

// `type` decides how wide a fractal is. The caller releases the array with delete[]. A pair of
// formats that is not supported: ACLNN_ERR_PARAM_INVALID, on which torch_npu takes another way.
extern "C" int aclnnNpuFormatCastCalculateSizeAndFormat(const aclTensor* source, int format,
                                                        int type, int64_t** sizes, uint64_t* dims,
                                                        int* actual) {
    const auto& shape = source->sizes;
    if ((format != ND && format != FRACTAL_NZ) || (format == FRACTAL_NZ && shape.size() < 2))
        return 161002;
    std::vector<int64_t> made(shape);
    if (format == FRACTAL_NZ) {
        int64_t rows = shape[shape.size() - 2], columns = shape.back(),
                width = columns_of_fractal(type);
        made.resize(shape.size() - 2);
        made.insert(made.end(),
                    {blocks(columns, width), blocks(rows, FRACTAL_ROWS), FRACTAL_ROWS, width});
    }
    *dims = made.size();
    *sizes = new int64_t[made.size()];
    std::copy(made.begin(), made.end(), *sizes);
    *actual = format;
    return 0;
}
