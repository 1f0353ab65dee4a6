/* main.c - the program ddp_pack. */
#include <unistd.h>

#include "tools/pack/pack.h"

int main(int argc, char **argv)
{
    return ddpi_pack_main(argc, argv, environ);
}
