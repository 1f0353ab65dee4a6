# Warnings that count as errors, for every target of ours.
add_library(ddp_warnings INTERFACE)
target_compile_options(ddp_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wmissing-prototypes -Wstrict-prototypes
  -Wno-sign-conversion -Werror)
