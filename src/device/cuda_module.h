/* cuda_module.h - what the CUDA module hands to the program that loads it.
 *
 * The CUDA device and the NCCL communicator live in a shared library of their own, so that the
 * program itself needs no CUDA library and starts on machines that have none. The program opens the
 * module with dlopen() and asks DDPI_CUDA_MODULE_SYMBOL for this table; the module in turn uses
 * libddp, which is in the process already. No type of CUDA appears here. */
#ifndef DDP_DEVICE_CUDA_MODULE_H
#define DDP_DEVICE_CUDA_MODULE_H

#include "ddp/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DDPI_CUDA_MODULE_FILE   "libddp_cuda.so.0"
#define DDPI_CUDA_MODULE_SYMBOL "ddp_cuda_module_get"

/* Grows with every change of this table or of anything else that both sides must agree on. */
enum { DDPI_CUDA_MODULE_VERSION = 3, DDPI_CUDA_UUID_BYTES = 40, DDPI_CUDA_PCI_BYTES = 32 };

/* One GPU, as far as ranks compare it. */
typedef struct ddpi_cuda_identity {
    char uuid[DDPI_CUDA_UUID_BYTES]; /* hexadecimal; the same in every process */
    char pci[DDPI_CUDA_PCI_BYTES];   /* "0000:3b:00.0", as hwloc and sysfs name it */
    char name[64];
} ddpi_cuda_identity;

typedef struct ddp_cuda_module {
    int version; /* DDPI_CUDA_MODULE_VERSION */
    const ddp_device_ops *device;
    const struct ddp_lane_ops *(*lane)(void); /* NULL: built without NCCL */
    /* Local. How many GPUs this process sees; at least 1. Fails with one sentence where there is no
     * driver, too old a driver, or no GPU. */
    ddp_status (*probe)(int *count_out);
    /* Local. index is less than probe's count. Does not make a context on the GPU. */
    ddp_status (*identify)(int index, ddpi_cuda_identity *identity_out);
    /* Local. Versions of driver, runtime and NCCL, and where NCCL was loaded from; what does not
     * answer is left out. */
    void (*versions)(char *text, size_t text_bytes);
} ddp_cuda_module;

/* "NCCL 2.21.5 (/usr/lib/libnccl.so.2)", from comm/nccl in the module. */
void ddpi_nccl_version(char *text, size_t text_bytes);
/* The lane over NCCL, which comm/nccl defines in the module. */
const struct ddp_lane_ops *ddpi_lane_nccl(void);

typedef const ddp_cuda_module *(*ddp_cuda_module_fn)(void);

/* Local, in the program. Loads the module; count_out: GPUs that this process sees, at least 1. One
 * sentence where it cannot be loaded or finds no GPU. */
DDP_MODULE_API DDP_INNER ddp_status ddpi_cuda_module_open(const ddp_cuda_module **module_out,
                                                          int *count_out);
/* Local. Whether that is worth trying where nobody asks for it. */
DDP_MODULE_API bool ddpi_cuda_is_likely(void);

#ifdef __cplusplus
}
#endif
#endif
