/* cudnn_conv.h - a convolution of the simulated cuDNN as its checks hand it to its loops. */
#ifndef SIMCUDA_CUDNN_CONV_H
#define SIMCUDA_CUDNN_CONV_H

#include "cudnn_impl.h"

enum sim_direction { SIM_FORWARD, SIM_BACKWARD_DATA, SIM_BACKWARD_FILTER };

struct sim_conv_shape {
    sim_tensor x, y; /* dx and dy backward */
    sim_filter w;
    sim_conv conv;
    sim_type type;
    bool tf32;
    int64_t k_group, c_group, out_h, out_w, depth; /* depth: elements of a group's filter */
};

/* What a run reads and writes. Pointers are the program's; unused ones are NULL. */
struct sim_conv_run {
    const char *name;
    const void *x, *w, *y; /* which of them is written depends on the direction */
    void *workspace;
    size_t workspace_bytes;
    float alpha, beta;
    bool changing; /* sums in an order that is never the same twice */
    const void *z, *bias;
    sim_tensor z_desc, bias_desc;
    float alpha_z;
    bool relu;
};

void sim_conv_forward(const sim_conv_shape &shape, const sim_conv_run &run);
void sim_conv_backward_data(const sim_conv_shape &shape, const sim_conv_run &run);
void sim_conv_backward_filter(const sim_conv_shape &shape, const sim_conv_run &run);

#endif
