/* cuda_open.c - the CUDA module, loaded when a run asks for it.
 *
 * The module stays loaded to the end of the process: CUDA's libraries have threads of their own. */
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "device/cuda_module.h"

/* "libX.so.1: cannot open ...": which library it is that is missing. */
static ddp_status not_loaded(const char *cause)
{
    size_t name_bytes = strcspn(cause, ":");

    if (strncmp(cause, DDPI_CUDA_MODULE_FILE ":", name_bytes + 1) == 0 &&
        strstr(cause, "No such file") != NULL)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED,
                        "option --device cuda: there is no CUDA module (" DDPI_CUDA_MODULE_FILE
                        ") beside this build of ddp_train");
    return DDP_FAIL(DDP_ERR_UNSUPPORTED,
                    "option --device cuda: the CUDA module cannot be loaded: %.200s", cause);
}

static ddp_status load(const ddp_cuda_module **module_out)
{
    void *library = dlopen(DDPI_CUDA_MODULE_FILE, RTLD_NOW | RTLD_LOCAL);
    ddp_cuda_module_fn get;

    if (library == NULL)
        return not_loaded(dlerror());
    void *symbol = dlsym(library, DDPI_CUDA_MODULE_SYMBOL);
    memcpy(&get, &symbol, sizeof get);
    if (get == NULL || get()->version != DDPI_CUDA_MODULE_VERSION)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "option --device cuda: the CUDA module that was "
                                             "found belongs to another version of ddp_train");
    *module_out = get();
    return DDP_OK;
}

ddp_status ddpi_cuda_module_open(const ddp_cuda_module **module_out, int *count_out)
{
    const ddp_cuda_module *module = NULL;

    DDP_TRY(load(&module));
    ddp_status st = module->probe(count_out);
    if (st != DDP_OK)
        return ddp_status_prefix(st, "option --device cuda");
    *module_out = module;
    return DDP_OK;
}

bool ddpi_cuda_is_likely(void)
{
    return access("/dev/nvidiactl", F_OK) == 0;
}
