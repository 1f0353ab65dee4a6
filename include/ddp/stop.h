/* stop.h - signals: TERM, INT and USR1 set a flag that the training loop looks at, and USR2 asks it
 * for a timeline of the last steps.
 *
 * The first of the former asks for an orderly end; from then on they have their usual effect
 * again, so that a second one ends the process at once. */
#ifndef DDP_STOP_H
#define DDP_STOP_H

#include "ddp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Catches the signals from now on, on a stack of their own. Once, in the main thread, before there
 * are others. */
DDP_API void ddp_stop_catch(void);
/* Any thread. The signal that asked this process to stop; 0: none so far. */
DDP_API int ddp_stop_asked(void);
/* Any thread. How often USR2 has come so far. */
DDP_API int ddp_stop_timelines(void);

#ifdef __cplusplus
}
#endif
#endif
