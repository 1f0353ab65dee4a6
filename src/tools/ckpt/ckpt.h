/* ckpt.h - the commands of ddp_ckpt. Each prints on standard output and returns the exit status: 0
 * good or equal, 1 damaged or different, 2 trouble. One thread. */
#ifndef DDP_TOOLS_CKPT_CKPT_H
#define DDP_TOOLS_CKPT_CKPT_H

enum { DDPI_CKPT_GOOD, DDPI_CKPT_BAD, DDPI_CKPT_TROUBLE };

/* A checkpoint; or a run's directory, or its folder of checkpoints: all of them. */
int ddpi_ckpt_verify(const char *path);
int ddpi_ckpt_show(const char *path);
/* Two checkpoints, or two safetensors files. */
int ddpi_ckpt_diff(const char *a, const char *b);
/* Says the last failure. */
int ddpi_ckpt_trouble(void);

#endif
