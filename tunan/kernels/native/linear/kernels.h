// What one instruction set provides for linear layers. linear.cpp cuts a layer into panels of
// 32 outputs and tiles of rows and hands them to the threads.
#pragma once

#include <cstdint>

#include "float_type.h"
#include "isa.h"
#include "linear/layout.h"

namespace tunan {

// Some rows of quantised activations, as many as fit the registers.
struct RowTile {
    const int8_t* values;  // [K'/unit][rows][unit]
    // What is added to sums of products for the zero point that weights are stored with: less it
    // times the sum of the inputs, or less that sum alone where weights have zero points of their
    // own. Per channel: [rows], over all inputs; grouped: [groups][rows].
    const int32_t* shifts;
    const float* scales;  // [rows]
    int rows;
};

// A panel of weights, and what makes it a layer's part.
struct WeightPanel {
    const uint8_t* data;
    const float* scales;  // [32], per channel only
    const float* bias;    // [32]
    int64_t depth;        // K'
    int group;
    ScaleType scale_type;
    bool has_zeros;
    const uint8_t* unpacked;  // what PanelKernels::unpack4 made of it, or null
};

// Where the results of one panel and tile go: `columns` of the 32, `stride` elements between rows.
struct ResultTile {
    void* data;
    FloatType type;
    int64_t stride;
    int columns;
};

using PanelKernel = void (*)(const WeightPanel&, const RowTile&, const ResultTile&);

// One way to multiply: with vectors, or with the CPU's matrix registers.
struct PanelKernels {
    int max_rows;     // of a RowTile
    int unit;         // of a RowTile; a group of weights where that is smaller
    int block_bytes;  // of activations that stay in the second-level cache while
                      // all panels pass by
    PanelKernel per_channel8;
    PanelKernel grouped8;
    PanelKernel grouped4;
    // Where it pays to do it once for many tiles: the weights of a panel of 4 bits as grouped4
    // multiplies them, [K'][32] bytes; may be null.
    void (*unpack4)(const WeightPanel&, uint8_t* to);
    // Gives back what the kernels hold of the CPU, at the end of a thread's chunk; may be null.
    void (*release)();
};

struct LinearKernels {
    WeightLayout layout;
    PanelKernels vectors;
    // For so many rows or more `matrices` instead, if it is not null: the same results.
    int matrix_rows;
    const PanelKernels* matrices;
    // One row: `values` [stride] zero beyond `inputs`, `sums` [stride/32], of a symmetric
    // quantisation to -127 ... 127. A row with a NaN or an infinity gets the scale NaN and values
    // 0; one whose largest magnitude is below 2^-100 the scale 0 and values 0.
    void (*quantize_row)(const void* x, FloatType type, int64_t inputs, int64_t stride,
                         int8_t* values, float* scale, int32_t* sums);
};

#define TUNAN_DECLARE_LINEAR(isa)          \
    namespace isa {                        \
    const LinearKernels& linear_kernels(); \
    const PanelKernels* matrix_kernels();  \
    }
TUNAN_ISAS(TUNAN_DECLARE_LINEAR)
#undef TUNAN_DECLARE_LINEAR

}  // namespace tunan
