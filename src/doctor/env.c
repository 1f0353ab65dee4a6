/* env.c - the variables that change what ranks do together. Those of a launcher's own plumbing
 * differ between ranks by nature, and may carry its secrets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/memory.h"
#include "doctor/doctor.h"

enum { VALUE_BYTES = 300 };

static bool starts_with_any(const char *text, const char *const *starts)
{
    for (; *starts != NULL; starts++)
        if (strncmp(text, *starts, strlen(*starts)) == 0)
            return true;
    return false;
}

static bool is_relevant(const char *variable)
{
    static const char *const wanted[] = {"OMPI_MCA_",
                                         "NCCL_",
                                         "UCX_",
                                         "FI_",
                                         "MPICH_",
                                         "I_MPI_",
                                         "CUDA_VISIBLE_DEVICES=",
                                         "CUDA_DEVICE_ORDER=",
                                         "CUDA_LAUNCH_BLOCKING=",
                                         "CUDA_MODULE_LOADING=",
                                         "CUDNN_",
                                         "CUBLAS_",
                                         "OMP_",
                                         "GOMP_",
                                         "KMP_",
                                         "DNNL_",
                                         "ONEDNN_",
                                         "MALLOC_",
                                         "HWLOC_",
                                         "GLIBC_",
                                         "LD_LIBRARY_PATH=",
                                         "LD_PRELOAD=",
                                         "DDP_TRAIN_",
                                         NULL};
    /* How daemons and ranks were started, which is the launcher's business. */
    static const char *const unwanted[] = {"OMPI_MCA_orte_",
                                           "OMPI_MCA_ess",
                                           "OMPI_MCA_pmix",
                                           "OMPI_MCA_plm",
                                           "OMPI_MCA_routed",
                                           "OMPI_MCA_rmaps",
                                           "OMPI_MCA_ras",
                                           "OMPI_MCA_odls",
                                           "OMPI_MCA_initial_wdir",
                                           "OMPI_MCA_shmem_",
                                           "NCCL_DEBUG",
                                           "NCCL_HOSTID",
                                           NULL};

    return starts_with_any(variable, wanted) && !starts_with_any(variable, unwanted);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void ddpi_doctor_look_at_env(char *const *envp, char *text, size_t bytes)
{
    size_t count = 0, used = 0;
    const char **list;

    text[0] = '\0';
    for (char *const *at = envp; at != NULL && *at != NULL; at++)
        count += is_relevant(*at);
    if (DDP_ALLOC(list, count) != DDP_OK)
        return;
    count = 0;
    for (char *const *at = envp; at != NULL && *at != NULL; at++)
        if (is_relevant(*at))
            list[count++] = *at;
    qsort(list, count, sizeof *list, by_text);
    for (size_t i = 0; i < count && used + VALUE_BYTES + 2 < bytes; i++) {
        used += (size_t)snprintf(text + used, bytes - used, "%.*s", VALUE_BYTES, list[i]);
        for (char *at = text + used; at > text && at[-1] != '\n'; at--)
            if ((unsigned char)at[-1] < ' ')
                at[-1] = '?';
        text[used++] = '\n';
        text[used] = '\0';
    }
    ddp_free(list);
}

int ddpi_doctor_number(char *const *envp, const char *name)
{
    const size_t bytes = strlen(name);

    for (char *const *at = envp; at != NULL && *at != NULL; at++)
        if (strncmp(*at, name, bytes) == 0 && (*at)[bytes] == '=')
            return (int)strtol(*at + bytes + 1, NULL, 10);
    return 0;
}
