/* fs.h - whole files, atomic replacement, directories, checksums, and the single steps of writing
 * what must survive a crash. Errors name the path. */
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

/* ---- what must survive a crash, step by step ---- */

/* Creates a file, or opens one that exists, for writing at any place. */
DDP_CALL ddp_status ddp_fs_create(const char *path, int *fd_out);
DDP_CALL ddp_status ddp_fs_open_write(const char *path, int *fd_out);
/* As ddp_fs_write_all, at a place of the file. */
DDP_CALL ddp_status ddp_fs_write_at(int fd, const void *data, size_t bytes, size_t offset,
                                    const char *path);
/* Gives the file its length, and the blocks for it where the file system can promise them. */
DDP_CALL ddp_status ddp_fs_reserve(int fd, size_t bytes, const char *path);
/* Puts a file's contents on the disk. */
DDP_CALL ddp_status ddp_fs_sync(int fd, const char *path);
/* Puts a folder's entries on the disk. */
DDP_CALL ddp_status ddp_fs_sync_dir(const char *path);
/* Renames within a folder, or between two of one file system, and syncs the folder of `to`. */
DDP_CALL ddp_status ddp_fs_rename(const char *from, const char *to);
/* Removes a file, or a folder with everything in it. Absent is fine. */
DDP_CALL ddp_status ddp_fs_remove_tree(const char *path);

typedef struct ddp_fs_names {
    char **names; /* sorted by strcmp, without "." and ".." */
    size_t count;
} ddp_fs_names;
/* An absent folder has no names. Freed with ddp_fs_names_free(). */
DDP_CALL ddp_status ddp_fs_list(const char *path, ddp_fs_names *names_out);
DDP_API void ddp_fs_names_free(ddp_fs_names *names);

/* For tests and rehearsals: fn is asked before every create, write, reserve, sync and rename of
 * this process, by any thread, and answers with an errno that the call then fails with, or 0. NULL:
 * nobody. Set while no thread is in one of them. */
typedef int (*ddp_fs_fault_fn)(void *arg, const char *what, const char *path);
DDP_API void ddp_fs_on_fault(ddp_fs_fault_fn fn, void *arg);

/* XXH3 64-bit, in one go and in pieces. */
DDP_API uint64_t ddp_hash64(const void *data, size_t bytes);
typedef struct ddp_hasher ddp_hasher;
DDP_CALL ddp_status ddp_hasher_create(ddp_hasher **hasher_out);
DDP_API void ddp_hasher_update(ddp_hasher *hasher, const void *data, size_t bytes);
DDP_API uint64_t ddp_hasher_digest(const ddp_hasher *hasher);
DDP_API void ddp_hasher_destroy(ddp_hasher *hasher);
/* Of a whole file, with its size. */
DDP_CALL ddp_status ddp_fs_hash(const char *path, uint64_t *hash_out, size_t *bytes_out);

#ifdef __cplusplus
}
#endif
#endif
