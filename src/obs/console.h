/* console.h - the process's terminal, which the ranks of one process share.
 * Any thread; one lock keeps lines whole and the progress line out of their way. */
#ifndef DDP_OBS_CONSOLE_H
#define DDP_OBS_CONSOLE_H

#include "ddp/base.h"

/* Writes text to fd (stdout or stderr), after clearing a progress line that is being shown. */
void ddpi_console_write(int fd, const char *text, size_t bytes);
/* Shows a progress line without a final newline; it stays until the next write or end. */
void ddpi_console_progress(const char *text, size_t bytes);
/* Moves behind the progress line, if one is shown. */
void ddpi_console_progress_end(void);

#endif
