/*
 * children.h - runs functions in processes of their own and collects how they end. The parent never
 * calls the simulator, so that each child starts it afresh.
 */
#ifndef DDP_TESTS_SIMCUDA_CHILDREN_H
#define DDP_TESTS_SIMCUDA_CHILDREN_H

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

const int CHILDREN = 8;

struct outcome {
    int status[CHILDREN]; /* exit status; 128 + signal */
    char text[65536];     /* what all of them said */
};

inline int child_status(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* `count` processes that run body(rank, count). Each ends by exit(), so that what runs at exit
 * does. */
inline void run_children(int count, void (*body)(int rank, int count), outcome *out)
{
    int ends[2];
    pid_t pids[CHILDREN];
    size_t used = 0;
    fflush(nullptr);
    if (pipe(ends))
        exit(2);
    for (int rank = 0; rank < count; rank++) {
        pids[rank] = fork();
        if (pids[rank] != 0)
            continue;
        char text[16];
        snprintf(text, sizeof text, "%d", rank);
        setenv("OMPI_COMM_WORLD_RANK", text, 1);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        body(rank, count);
        exit(0);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], out->text + used, sizeof out->text - 1 - used)) > 0;)
        used += (size_t)got;
    out->text[used] = 0;
    close(ends[0]);
    for (int rank = 0; rank < count; rank++)
        out->status[rank] = child_status(pids[rank]);
}

#endif
