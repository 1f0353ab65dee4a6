/* main.c - the program ddp_train: the library's own models and data sets, and nothing else. */
#include "ddp/app.h"

int main(int argc, char **argv)
{
    return ddp_app_main(argc, argv, NULL);
}
