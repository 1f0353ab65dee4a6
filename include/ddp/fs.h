/* fs.h - whole files, atomic replacement, directories, checksums. Errors name the path. */
#ifndef DDP_FS_H
#define DDP_FS_H

#include "ddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads a whole file; refuses one over limit_bytes (DDP_ERR_FORMAT). *data_out has one more byte,
 * 0. The caller frees it with ddp_free(). */
DDP_CALL ddp_status ddp_fs_read(const char *path, size_t limit_bytes, char **data_out,
                                size_t *bytes_out);
/* Complete or absent: writes beside, syncs, renames, syncs the folder. */
DDP_CALL ddp_status ddp_fs_write_atomic(const char *path, const void *data, size_t bytes);
/* mkdir -p. */
DDP_CALL ddp_status ddp_fs_make_dirs(const char *path);
DDP_API bool ddp_fs_exists(const char *path);
/* Writes all bytes to fd in spite of short writes and EINTR; path is for the message. */
DDP_CALL ddp_status ddp_fs_write_all(int fd, const void *data, size_t bytes, const char *path);
/* "dir/name" into text; DDP_ERR_USAGE if it does not fit. */
DDP_CALL ddp_status ddp_fs_join(char *text, size_t text_bytes, const char *dir, const char *name);

/* XXH3 64-bit, in one go and in pieces. */
DDP_API uint64_t ddp_hash64(const void *data, size_t bytes);
typedef struct ddp_hasher ddp_hasher;
DDP_CALL ddp_status ddp_hasher_create(ddp_hasher **hasher_out);
DDP_API void ddp_hasher_update(ddp_hasher *hasher, const void *data, size_t bytes);
DDP_API uint64_t ddp_hasher_digest(const ddp_hasher *hasher);
DDP_API void ddp_hasher_destroy(ddp_hasher *hasher);

#ifdef __cplusplus
}
#endif
#endif
