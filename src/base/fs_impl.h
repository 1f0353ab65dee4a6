/* fs_impl.h - what the files of fs.h's implementation share. */
#ifndef DDP_BASE_FS_IMPL_H
#define DDP_BASE_FS_IMPL_H

#include "ddp/fs.h"

/* Asks whether this call is to fail; the message is as if the system had refused it. */
DDP_INNER ddp_status ddpi_fs_fault(const char *what, const char *path);

#endif
