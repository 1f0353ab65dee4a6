/* main.c - the program ddp_bench. */
#include <unistd.h>

#include "tools/bench/bench.h"

int main(int argc, char **argv)
{
    return ddpi_bench_main(argc, argv, environ);
}
